import java.io.IOException;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Properties;
import org.neo4j.configuration.Config;
import org.neo4j.configuration.GraphDatabaseSettings;
import org.neo4j.configuration.connectors.BoltConnector;
import org.neo4j.configuration.helpers.SocketAddress;
import org.neo4j.dbms.api.DatabaseManagementService;
import org.neo4j.dbms.api.DatabaseManagementServiceBuilder;

/**
 * A Neo4j server that speaks Bolt on the loopback and lives no longer than whoever holds its standard input.
 *
 * <p>Arguments: the data directory, the port, then settings of neo4j.conf as key=value. With WORKBENCH_LAUNCHER_PASSWORD in the
 * environment, where no list of processes shows it, authentication is on and the user neo4j has this password. A line that begins
 * with READY says that the server answers.
 */
public final class Launcher {
    /** Else Bolt waits ten seconds for late requests when it stops. Releases differ in the name. */
    private static final Map<String, String> QUICK_STOP = Map.of(
            "internal.dbms.bolt.netty_server_shutdown_quiet_period", "0",
            "internal.dbms.bolt.netty_server_shutdown_quiet_period_duration", "0s");

    private Launcher() {}

    public static void main(String[] arguments) {
        Thread lifeline = new Thread(Launcher::exitAtEndOfInput, "lifeline");
        lifeline.setDaemon(true);
        lifeline.start();
        try {
            serve(Path.of(arguments[0]).toAbsolutePath(), Integer.parseInt(arguments[1]), settings(arguments));
        } catch (Exception failed) {
            failed.printStackTrace();
            System.exit(1); // what has been started so far would keep the process alive
        }
    }

    private static void exitAtEndOfInput() {
        try {
            while (System.in.read() >= 0) {}
        } catch (IOException broken) {
            System.err.println("standard input: " + broken.getMessage());
        }
        System.exit(0);
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.putAll(QUICK_STOP);
        settings.keySet().retainAll(Config.defaults().getDeclaredSettings().keySet());
        for (int place = 2; place < arguments.length; place++) {
            String[] parts = arguments[place].split("=", 2);
            settings.setProperty(parts[0], parts[1]);
        }
        return settings;
    }

    private static void serve(Path home, int port, Properties settings) throws IOException {
        SocketAddress address = new SocketAddress("127.0.0.1", port);
        String password = System.getenv("WORKBENCH_LAUNCHER_PASSWORD");
        DatabaseManagementService server = new DatabaseManagementServiceBuilder(home)
                .loadPropertiesFromFile(written(settings, home.resolve("neo4j.conf")))
                .setConfig(GraphDatabaseSettings.auth_enabled, password != null)
                .setConfig(BoltConnector.enabled, true)
                .setConfig(BoltConnector.listen_address, address)
                .setConfig(BoltConnector.advertised_address, address)
                .build();
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdown, "shutdown"));
        if (password != null) {
            setPassword(server, password);
        }
        System.out.println("READY bolt://" + address);
    }

    private static Path written(Properties settings, Path file) throws IOException {
        Files.createDirectories(file.getParent());
        try (Writer writer = Files.newBufferedWriter(file)) {
            settings.store(writer, "Written anew at each start.");
        }
        return file;
    }

    private static void setPassword(DatabaseManagementService server, String password) {
        String statement = "CREATE OR REPLACE USER neo4j SET PASSWORD $password CHANGE NOT REQUIRED";
        server.database(GraphDatabaseSettings.SYSTEM_DATABASE_NAME)
                .executeTransactionally(statement, Map.of("password", password));
    }
}
