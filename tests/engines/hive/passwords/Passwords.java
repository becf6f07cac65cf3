import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import javax.security.sasl.AuthenticationException;
import org.apache.hive.service.auth.PasswdAuthenticationProvider;

/** Lets in the users of the file HIVE_PASSWORDS, a line "user=password" each, with the right password only. */
public final class Passwords implements PasswdAuthenticationProvider {
  @Override
  public void Authenticate(String user, String password) throws AuthenticationException {
    Properties known = new Properties();
    try (Reader lines = Files.newBufferedReader(Path.of(System.getenv("HIVE_PASSWORDS")))) {
      known.load(lines);
    } catch (IOException error) {
      throw new AuthenticationException("The passwords cannot be read.", error);
    }
    if (!password.equals(known.getProperty(user))) {
      throw new AuthenticationException("Wrong user or password.");
    }
  }
}
