import workbench
from tests.support import ids, numbered


def test_save_and_search(memory: workbench.Memory) -> None:
    memory.save_many(numbered(5))
    assert len(ids(memory.search("content number 3").results)) == 4
