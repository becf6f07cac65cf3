import java.util.Arrays;
import java.util.List;
import org.apache.calcite.avatica.server.AvaticaServerConfiguration;
import org.apache.calcite.avatica.server.ServerCustomizer;
import org.apache.hadoop.conf.Configuration;
import org.apache.phoenix.queryserver.server.ServerCustomizersFactory;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/** Has Phoenix Query Server listen on the loopback interface; no setting of its own does. */
public final class Loopback implements ServerCustomizersFactory {
  @Override
  public List<ServerCustomizer<Server>> createServerCustomizers(Configuration settings, AvaticaServerConfiguration avatica) {
    return List.of(Loopback::bind);
  }

  private static void bind(Server server) {
    Arrays.stream(server.getConnectors())
        .map(ServerConnector.class::cast)
        .forEach(connector -> connector.setHost("127.0.0.1"));
  }
}
