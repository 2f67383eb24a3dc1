import alluxio.conf.PropertyKey;
import java.lang.reflect.Field;
import java.util.List;
import java.util.TreeSet;
import java.util.regex.Pattern;

/** Prints every property name that this version of Alluxio knows; lines with ^…$ are patterns of names. */
public class PropertyKeys {
  public static void main(String[] args) throws Exception {
    TreeSet<String> lines = new TreeSet<>();
    for (PropertyKey key : PropertyKey.defaultKeys()) {
      lines.add(key.getName());
      if (key.getAliases() != null) {
        lines.addAll(List.of(key.getAliases()));
      }
    }
    Field pattern = PropertyKey.Template.class.getDeclaredField("mPattern");
    pattern.setAccessible(true);
    for (PropertyKey.Template template : PropertyKey.Template.values()) {
      lines.add("^" + ((Pattern) pattern.get(template)).pattern() + "$");
    }
    lines.forEach(System.out::println);
  }
}
