"""What building and testing avactl needs beside the package itself."""
