"""All Cypher of the Neo4j store. Values are parameters; the constants are put together from constants only.

A namespace is a property of every node. Ids are unique in it by constraints, which Community has as well. ``Library`` is written
by every change: its lock lets one writer at a time into a namespace.
"""

from typing import Final

SCHEMA: Final = 1
"""Version of the model below; kept in every ``Library``."""

SET_UP: Final = (
    "CREATE CONSTRAINT workbench_library IF NOT EXISTS FOR (library:Library) REQUIRE library.namespace IS UNIQUE",
    "CREATE CONSTRAINT workbench_event_id IF NOT EXISTS FOR (event:Event) REQUIRE (event.namespace, event.id) IS UNIQUE",
    "CREATE CONSTRAINT workbench_event_terms IF NOT EXISTS "
    "FOR (terms:EventTerms) REQUIRE (terms.namespace, terms.eventId) IS UNIQUE",
    "CREATE CONSTRAINT workbench_event_source IF NOT EXISTS "
    "FOR (source:EventSource) REQUIRE (source.namespace, source.eventId, source.ordinal) IS UNIQUE",
    "CREATE CONSTRAINT workbench_concept_name IF NOT EXISTS "
    "FOR (concept:Concept) REQUIRE (concept.namespace, concept.nameKey) IS UNIQUE",
    "CREATE CONSTRAINT workbench_concept_id IF NOT EXISTS FOR (concept:Concept) REQUIRE (concept.namespace, concept.id) IS UNIQUE",
    "CREATE CONSTRAINT workbench_person_name IF NOT EXISTS "
    "FOR (person:Person) REQUIRE (person.namespace, person.nameKey) IS UNIQUE",
    "CREATE CONSTRAINT workbench_person_id IF NOT EXISTS FOR (person:Person) REQUIRE (person.namespace, person.id) IS UNIQUE",
    "CREATE INDEX workbench_event_changed IF NOT EXISTS FOR (event:Event) ON (event.namespace, event.changed)",
    "CREATE INDEX workbench_event_written IF NOT EXISTS FOR (event:Event) ON (event.namespace, event.written, event.id)",
    "CREATE INDEX workbench_event_key IF NOT EXISTS FOR (event:Event) ON (event.namespace, event.key)",
    "CREATE INDEX workbench_concept_changed IF NOT EXISTS FOR (concept:Concept) ON (concept.namespace, concept.changed)",
    "CREATE INDEX workbench_person_changed IF NOT EXISTS FOR (person:Person) ON (person.namespace, person.changed)",
    "CREATE INDEX workbench_removal_changed IF NOT EXISTS FOR (removal:Removal) ON (removal.namespace, removal.changed)",
)
CONSTRAINTS: Final = (
    "workbench_library",
    "workbench_event_id",
    "workbench_event_terms",
    "workbench_event_source",
    "workbench_concept_name",
    "workbench_concept_id",
    "workbench_person_name",
    "workbench_person_id",
)
AWAIT_INDEXES: Final = "CALL db.awaitIndexes(300)"
CONSTRAINT_NAMES: Final = "SHOW CONSTRAINTS YIELD name WHERE name STARTS WITH 'workbench_' RETURN name"

# -- the library ---------------------------------------------------------------------------------------------------------

OPENING: Final = """
MATCH (library:Library)
WHERE library.namespace IS NOT NULL
RETURN max(library.schema) AS schema, count(CASE WHEN library.namespace = $namespace THEN 1 END) AS own
"""
CREATE_LIBRARY: Final = """
MERGE (library:Library {namespace: $namespace})
ON CREATE SET library += $fields
"""
_LIBRARY: Final = """
MATCH (library:Library {namespace: $namespace})
"""
LIBRARY: Final = (
    _LIBRARY
    + """
RETURN library {.revision, .model, .dimension, .chunker, .last} AS fields
"""
)
SETTLED_LIBRARY: Final = (
    LIBRARY
    + """,
    COUNT { MATCH (event:Event) WHERE event.namespace = $namespace AND event.changed = library.revision } AS events
"""
)
LOCK: Final = (
    _LIBRARY
    + """
SET library.lock = $token
WITH library
RETURN library {.revision, .model, .dimension, .chunker, .nextEvent, .nextConcept, .nextPerson, .nextKey} AS library,
    $token IN library.lastWrites AS done
"""
)
"""Nothing of the library is read before its lock is held, so what is read can not be out of date."""
UNLOCK: Final = (
    _LIBRARY
    + """
SET library += $fields, library.lastWrites = [$token] + library.lastWrites[..$kept]
REMOVE library.lock
"""
)

# -- events --------------------------------------------------------------------------------------------------------------

_FIELDS: Final = """
event {
    .key, .changed, .id, .title, .summary, .length, .textHash, .chunked, .chunks, .concepts, .persons, .tags, .kind, .eventType,
    .temporalStatus, .critical, .visibility, .supersededBy, .adoptions, .seals,
    written: event.written.epochMillis * 1000 + event.written.microsecond % 1000,
    occurredFrom: event.occurredFrom.epochMillis * 1000 + event.occurredFrom.microsecond % 1000,
    occurredTo: event.occurredTo.epochMillis * 1000 + event.occurredTo.microsecond % 1000
} AS fields
"""
_EVENTS: Final = """
MATCH (event:Event {namespace: $namespace})
"""
EVENT: Final = "MATCH (event:Event {namespace: $namespace, id: $id}) RETURN " + _FIELDS + ", event.content AS content"
EVENT_PAGE: Final = (
    _EVENTS
    + """
WHERE event.written IS NOT NULL AND event.id IS NOT NULL
WITH event ORDER BY event.written, event.id SKIP $offset LIMIT $limit
RETURN
"""
    + _FIELDS
    + ", event.content AS content"
)
TEXTS: Final = (
    _EVENTS
    + """
WHERE event.key > $after AND event.changed > $since
WITH event ORDER BY event.key LIMIT $limit
RETURN
"""
    + _FIELDS
    + ", event.content AS content"
)
PASSAGES: Final = (
    _EVENTS
    + """
WHERE event.id IN $ids
WITH event, event.content AS content
RETURN
"""
    + _FIELDS
    + """,
    left(content, $units) AS head,
    size(content) AS size,
    COLLECT {
        MATCH (event)-[link:MENTIONS]->(concept:Concept)
        WHERE link.position IS NOT NULL AND concept.namespace = $namespace
        RETURN [link.position, concept.id, link.name]
    } AS concepts
"""
)
PAGE: Final = """
MATCH (event:Event {namespace: $namespace, id: $id})
WITH event, event.content AS content
RETURN substring(content, $start, $limit) AS text, size(content) AS size, event.length AS length, event.visibility AS visibility
"""
TERMS: Final = """
MATCH (terms:EventTerms {namespace: $namespace})
WHERE terms.eventId IN $ids
RETURN collect([terms.eventId, terms.terms]) AS found
"""
"""All in one record: 78 records took twice as long."""
EVENT_STATES: Final = (
    _EVENTS
    + """
WHERE event.id IN $ids
RETURN """
    + _FIELDS
)
EVENT_FIELDS: Final = (
    _EVENTS
    + """
WHERE event.key > $after
WITH event ORDER BY event.key LIMIT $limit
RETURN """
    + _FIELDS
)
SUCCESSOR: Final = """
MATCH (event:Event {namespace: $namespace, id: $id})
RETURN event.supersededBy
"""
EVENT_COUNTS: Final = (
    _EVENTS
    + """
WHERE event.changed > 0
RETURN count(*) AS events,
    count(CASE WHEN event.visibility IN $shown THEN 1 END) AS visible,
    sum(event.chunks) AS chunks,
    count(CASE WHEN NOT event.chunked THEN 1 END) AS unchunked
"""
)
ORPHANS: Final = """
MATCH (part:EventSource|EventTerms {namespace: $namespace})
WHERE NOT EXISTS { (:Event {namespace: $namespace})-[:HAS_SOURCE|HAS_TERMS]->(part) }
RETURN labels(part)[0] AS label
"""

# -- Neo4j's own vector indexes ------------------------------------------------------------------------------------------

VECTOR_INDEXES: Final = {
    "workbench_event_embedding": "CREATE VECTOR INDEX workbench_event_embedding IF NOT EXISTS "
    "FOR (event:Event) ON (event.embedding) OPTIONS {indexConfig: {`vector.similarity_function`: 'cosine'}}",
    "workbench_source_embedding": "CREATE VECTOR INDEX workbench_source_embedding IF NOT EXISTS "
    "FOR (source:EventSource) ON (source.embedding) OPTIONS {indexConfig: {`vector.similarity_function`: 'cosine'}}",
}
VECTOR_INDEX_NAMES: Final = "SHOW VECTOR INDEXES YIELD name WHERE name STARTS WITH 'workbench_' RETURN name"
NEAREST_SUMMARIES: Final = """
CALL db.index.vector.queryNodes('workbench_event_embedding', $limit, $query) YIELD node, score
RETURN node.namespace AS namespace, node.id AS id ORDER BY score DESC
"""
NEAREST_SOURCES: Final = """
CALL db.index.vector.queryNodes('workbench_source_embedding', $limit, $query) YIELD node, score
RETURN node.namespace AS namespace, node.eventId AS id ORDER BY score DESC
"""
VECTORS: Final = (
    _EVENTS
    + """
WHERE event.id IN $ids
RETURN event.id AS id, event.seals AS seals, event.embedding AS embedding, COLLECT {
    MATCH (event)-[:HAS_SOURCE]->(source:EventSource)
    WHERE source.ordinal IS NOT NULL
    RETURN [source.ordinal, source.start, source.end, source.embedding]
} AS sources
"""
)

# -- what changed after a revision: all kinds of nodes in one round trip, the library before and after ------------------------

_BEFORE: Final = """
MATCH (library:Library {namespace: $namespace})
RETURN 'Library' AS kind, null AS node, library {.revision, .model, .dimension, .chunker, .last} AS fields, null AS parts
UNION ALL
MATCH (event:Event {namespace: $namespace})
WHERE event.changed > $since
RETURN 'Event' AS kind, elementId(event) AS node,
"""
_LINKS: Final = """
    links: COLLECT {
        MATCH (event)-[link:MENTIONS|INVOLVES]->(entity)
        WHERE link.position IS NOT NULL AND entity.namespace = $namespace
        RETURN [link.position, entity.key, link.name]
    },
"""
_SOURCES: Final = """
    embedding: event.embedding,
    sources: COLLECT {
        MATCH (event)-[:HAS_SOURCE]->(source:EventSource)
        WHERE source.ordinal IS NOT NULL
        RETURN [source.ordinal, source.start, source.end, source.embedding]
    }
"""
_AFTER: Final = """
} AS parts
UNION ALL
MATCH (entity:Concept {namespace: $namespace})
WHERE entity.changed > $since
RETURN 'Concept' AS kind, elementId(entity) AS node, entity {.key, .changed, .id, .nameKey, .name, .embedding, .seal} AS fields,
    null AS parts
UNION ALL
MATCH (entity:Person {namespace: $namespace})
WHERE entity.changed > $since
RETURN 'Person' AS kind, elementId(entity) AS node, entity {.key, .changed, .id, .nameKey, .name, .embedding, .seal} AS fields,
    null AS parts
UNION ALL
MATCH (removal:Removal {namespace: $namespace})
WHERE removal.changed > $since
RETURN 'Removal' AS kind, null AS node, removal {.id, .changed} AS fields, null AS parts
UNION ALL
MATCH (library:Library {namespace: $namespace})
RETURN 'Library' AS kind, null AS node, library {.revision, .model, .dimension, .chunker, .last} AS fields, null AS parts
"""
CHANGES: Final = _BEFORE + _FIELDS + ", {" + _LINKS + _SOURCES + _AFTER
DUMP: Final = (
    _BEFORE
    + _FIELDS
    + ", {"
    + _LINKS
    + """
    content: event.content,
    terms: COLLECT { MATCH (event)-[:HAS_TERMS]->(terms:EventTerms) RETURN terms.terms },
"""
    + _SOURCES
    + _AFTER
)
"""CHANGES with texts and terms."""
LIGHT_CHANGES: Final = (
    _BEFORE
    + _FIELDS
    + ", {"
    + _LINKS
    + """
    sources: COLLECT {
        MATCH (event)-[:HAS_SOURCE]->(source:EventSource)
        WHERE source.ordinal IS NOT NULL
        RETURN [source.ordinal, source.start, source.end, CASE WHEN source.embedding IS NOT NULL THEN [] END]
    }
"""
    + _AFTER
)
"""CHANGES without the vectors of events and chunks."""

# -- entities ------------------------------------------------------------------------------------------------------------

NAMES: Final = """
MATCH (entity:Concept {namespace: $namespace})
WHERE entity.changed > 0
RETURN 'Concept' AS label, entity {.key, .id, .nameKey, .name} AS fields
UNION ALL
MATCH (entity:Person {namespace: $namespace})
WHERE entity.changed > 0
RETURN 'Person' AS label, entity {.key, .id, .nameKey, .name} AS fields
"""
NAME_COUNTS: Final = """
MATCH (entity:Concept {namespace: $namespace})
WHERE entity.changed > 0
RETURN count(*) AS names
UNION ALL
MATCH (entity:Person {namespace: $namespace})
WHERE entity.changed > 0
RETURN count(*) AS names
"""
KNOWN_NAMES: Final = """
MATCH (entity:Concept {namespace: $namespace})
WHERE entity.nameKey IN $concepts
RETURN 'Concept' AS label, entity.nameKey AS nameKey
UNION ALL
MATCH (entity:Person {namespace: $namespace})
WHERE entity.nameKey IN $persons
RETURN 'Person' AS label, entity.nameKey AS nameKey
"""
TAKEN_IDS: Final = """
MATCH (entity:Concept {namespace: $namespace})
WHERE entity.id IN $ids
RETURN entity.id
UNION ALL
MATCH (entity:Person {namespace: $namespace})
WHERE entity.id IN $ids
RETURN entity.id
"""
SPELLINGS: Final = """
MATCH (entity:Concept {namespace: $namespace})
WHERE entity.id IN $ids
RETURN entity.id AS id, COLLECT {
    MATCH (entity)<-[link:MENTIONS]-(event:Event {namespace: $namespace})
    WHERE event.visibility IN $shown
    RETURN link.name ORDER BY event.written, event.id LIMIT 1
} AS names
UNION ALL
MATCH (entity:Person {namespace: $namespace})
WHERE entity.id IN $ids
RETURN entity.id AS id, COLLECT {
    MATCH (entity)<-[link:INVOLVES]-(event:Event {namespace: $namespace})
    WHERE event.visibility IN $shown
    RETURN link.name ORDER BY event.written, event.id LIMIT 1
} AS names
"""

# -- writing: each runs once for a batch of rows, under the lock ---------------------------------------------------------

CREATE_CONCEPTS: Final = """
UNWIND $rows AS row
CREATE (concept:Concept)
SET concept = row.fields, concept.namespace = $namespace
WITH concept, row
CALL db.create.setNodeVectorProperty(concept, 'embedding', row.embedding)
"""
"""The procedure keeps 32 bits of each float, which is half as much for the server to hold as a plain list."""
CREATE_PERSONS: Final = """
UNWIND $rows AS row
CREATE (person:Person)
SET person = row.fields, person.namespace = $namespace
WITH person, row
CALL db.create.setNodeVectorProperty(person, 'embedding', row.embedding)
"""
UPDATE_CONCEPTS: Final = """
UNWIND $rows AS row
MATCH (concept:Concept {namespace: $namespace, nameKey: row.fields.nameKey})
SET concept += row.fields
WITH concept, row
CALL db.create.setNodeVectorProperty(concept, 'embedding', row.embedding)
"""
UPDATE_PERSONS: Final = """
UNWIND $rows AS row
MATCH (person:Person {namespace: $namespace, nameKey: row.fields.nameKey})
SET person += row.fields
WITH person, row
CALL db.create.setNodeVectorProperty(person, 'embedding', row.embedding)
"""
WRITE_EVENTS: Final = """
UNWIND $rows AS row
MERGE (event:Event {namespace: $namespace, id: row.fields.id})
SET event += row.fields
WITH event, row
CALL db.create.setNodeVectorProperty(event, 'embedding', row.embedding)
"""
WRITE_TERMS: Final = """
UNWIND $rows AS row
MATCH (event:Event {namespace: $namespace, id: row.eventId})
MERGE (terms:EventTerms {namespace: $namespace, eventId: row.eventId})
SET terms.terms = row.terms
MERGE (event)-[:HAS_TERMS]->(terms)
"""
DELETE_SOURCES: Final = """
UNWIND $rows AS row
MATCH (:Event {namespace: $namespace, id: row.eventId})-[:HAS_SOURCE]->(source:EventSource)
WHERE source.ordinal >= row.chunks
DETACH DELETE source
"""
DELETE_LINKS: Final = """
UNWIND $ids AS id
MATCH (:Event {namespace: $namespace, id: id})-[link:MENTIONS|INVOLVES]->()
DELETE link
"""
WRITE_SOURCES: Final = """
UNWIND $rows AS row
MATCH (event:Event {namespace: $namespace, id: row.eventId})
MERGE (source:EventSource {namespace: $namespace, eventId: row.eventId, ordinal: row.ordinal})
SET source.start = row.start, source.end = row.end, source.embedding = null
MERGE (event)-[:HAS_SOURCE]->(source)
WITH source, row
WHERE row.embedding IS NOT NULL
CALL db.create.setNodeVectorProperty(source, 'embedding', row.embedding)
"""
WRITE_MENTIONS: Final = """
UNWIND $rows AS row
MATCH (event:Event {namespace: $namespace, id: row.eventId})
MATCH (concept:Concept {namespace: $namespace, nameKey: row.nameKey})
CREATE (event)-[:MENTIONS {position: row.position, name: row.name}]->(concept)
"""
WRITE_INVOLVEMENTS: Final = """
UNWIND $rows AS row
MATCH (event:Event {namespace: $namespace, id: row.eventId})
MATCH (person:Person {namespace: $namespace, nameKey: row.nameKey})
CREATE (event)-[:INVOLVES {position: row.position, name: row.name}]->(person)
"""
SET_STATE: Final = "MATCH (event:Event {namespace: $namespace, id: $id}) SET event += $fields"

# -- for hands -----------------------------------------------------------------------------------------------------------

DELETE_EVENT: Final = """
MATCH (library:Library {namespace: $namespace})
MATCH (event:Event {namespace: $namespace, id: $id})
SET library.revision = library.revision + 1
SET library.last = [library.revision, 0, 0, 1, library.last[4]]
CREATE (:Removal {namespace: $namespace, id: $id, changed: library.revision})
WITH event
OPTIONAL MATCH (event)-[:HAS_SOURCE|HAS_TERMS]->(part)
DETACH DELETE part, event
"""
"""Deletes an event by hand so that open libraries notice: what the store itself never does. One statement, one transaction."""
