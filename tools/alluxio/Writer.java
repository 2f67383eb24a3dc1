import alluxio.AlluxioURI;
import alluxio.client.file.FileOutStream;
import alluxio.client.file.FileSystem;
import alluxio.exception.FileDoesNotExistException;
import alluxio.grpc.CreateFilePOptions;
import alluxio.grpc.WritePType;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Writes files until its input ends, several at once. A line of input is `SOURCE PATH WRITE_TYPE`; its answer is
 * `closed PATH FILE_ID` once the file was closed, or `failed PATH REASON` once what was written is deleted.
 */
public class Writer {
  private static final int PIECE = 64 * 1024;
  private static final long PAUSE = 500;

  public static void main(String[] args) throws Exception {
    FileSystem files = FileSystem.Factory.create();
    ExecutorService threads = Executors.newFixedThreadPool(Integer.parseInt(args[0]), task -> {
      Thread thread = new Thread(task);
      thread.setDaemon(true);
      return thread;
    });
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = input.readLine()) != null;) {
      String[] words = line.split(" ");
      threads.execute(() -> write(files, Path.of(words[0]), words[1], WritePType.valueOf(words[2])));
    }
  }

  private static void write(FileSystem files, Path source, String path, WritePType type) {
    AlluxioURI uri = new AlluxioURI(path);
    try {
      byte[] data = Files.readAllBytes(source);
      CreateFilePOptions options = CreateFilePOptions.newBuilder().setRecursive(true).setWriteType(type).build();
      FileOutStream out = files.createFile(uri, options);
      long id;
      try {
        id = files.getStatus(uri).getFileId();
        for (int at = 0; at < data.length; at += PIECE) {
          out.write(data, at, Math.min(PIECE, data.length - at));
        }
      } catch (Throwable error) {
        out.cancel();
        throw error;
      }
      out.close();
      say("closed " + path + " " + id);
    } catch (Throwable error) {
      delete(files, uri);
      say("failed " + path + " " + String.valueOf(error).replaceAll("\\s+", " "));
    }
  }

  private static void delete(FileSystem files, AlluxioURI uri) {
    while (true) {
      try {
        Thread.sleep(PAUSE);
        files.delete(uri);
        return;
      } catch (FileDoesNotExistException error) {
        return;
      } catch (Exception error) {
        // The master is away: it comes back.
      }
    }
  }

  private static synchronized void say(String line) {
    System.out.println(line);
  }
}
