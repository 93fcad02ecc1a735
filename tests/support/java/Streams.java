package org.apache.commons.lang3.stream;

import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/** The only method that Iceberg-Java's variant readers call and that Spark 3.5's commons-lang3 3.12 does not have. */
public class Streams {
  public static Stream of(Iterable values) {
    return StreamSupport.stream(values.spliterator(), false);
  }
}
