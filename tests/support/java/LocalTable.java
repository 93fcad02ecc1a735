package support;

import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.function.Function;
import org.apache.iceberg.*;
import org.apache.iceberg.data.*;
import org.apache.iceberg.deletes.*;
import org.apache.iceberg.encryption.*;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.expressions.Evaluator;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.io.*;
import org.apache.iceberg.relocated.com.google.common.util.concurrent.MoreExecutors;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.iceberg.types.*;
import org.apache.iceberg.util.ByteBuffers;
import org.apache.iceberg.variants.Variant;

/**
 * A table that Iceberg-Java writes and reads in a local folder, without Hadoop, which forks a chmod for every file.
 * Spark's Janino compiler compiles it: no type inference, no lambdas.  Rows are passed as JSON by field id, a file at a
 * time.
 */
public class LocalTable implements TableOperations {
  private static final ObjectMapper JSON = new ObjectMapper();
  // Iceberg polls its worker pool every 10 ms; this executor has finished before the first poll.
  private static final ExecutorService DIRECT = MoreExecutors.newDirectExecutorService();
  private static final Function NO_VECTOR =
      new Function() {
        public Object apply(Object path) {
          return null;
        }
      };
  private final FileIO io = new LocalFileIO();
  private TableMetadata current = null;
  private int version = 0;
  private int files = 0;

  // -- a table

  public LocalTable create(String schemaJson, String specJson, Map properties, String location) {
    Schema schema = SchemaParser.fromJson(schemaJson);
    PartitionSpec spec = PartitionSpecParser.fromJson(schema, specJson);
    LocalTable made = new LocalTable();
    made.commit(
        null, TableMetadata.newTableMetadata(schema, spec, SortOrder.unsorted(), location, properties));
    return made;
  }

  /** Continues from the commit of another writer. */
  public void takeOver(String metadataLocation) {
    current = TableMetadataParser.read(io, metadataLocation);
    // Like BaseMetastoreTableOperations, number metadata files in the order of their commits.
    String name = metadataLocation.substring(metadataLocation.lastIndexOf('/') + 1);
    String number = name.substring(0, Math.max(0, name.indexOf('-')));
    version = number.matches("[0-9]+") ? Integer.parseInt(number) + 1 : version;
  }

  public Table table() {
    return new BaseTable(this, "ns.t");
  }

  public String metadataLocation() {
    return current.metadataFileLocation();
  }

  public String schemaJson(int schemaId) {
    return SchemaParser.toJson((Schema) current.schemasById().get(Integer.valueOf(schemaId)));
  }

  public String specJson(int specId) {
    return PartitionSpecParser.toJson(current.spec(specId));
  }

  // -- commits

  public void append(List added) {
    AppendFiles append = table().newAppend();
    append.scanManifestsWith(DIRECT);
    for (int i = 0; i < added.size(); i++) {
      append.appendFile((DataFile) added.get(i));
    }
    append.commit();
  }

  public void rowDelta(List data, List deletes) {
    RowDelta delta = newRowDelta();
    for (int i = 0; i < data.size(); i++) {
      delta.addRows((DataFile) data.get(i));
    }
    for (int i = 0; i < deletes.size(); i++) {
      delta.addDeletes((DeleteFile) deletes.get(i));
    }
    delta.commit();
  }

  /** Replaces data files by path, without a scan, which fails on equality deletes by a dropped column. */
  public void replace(List paths, List added) throws Exception {
    OverwriteFiles overwrite = table().newOverwrite();
    overwrite.scanManifestsWith(DIRECT);
    Iterator manifests = current.currentSnapshot().dataManifests(io).iterator();
    while (manifests.hasNext()) {
      ManifestReader reader = ManifestFiles.read((ManifestFile) manifests.next(), io, current.specsById());
      Iterator listed = reader.iterator();
      while (listed.hasNext()) {
        DataFile file = (DataFile) listed.next();
        if (paths.contains(file.location())) {
          overwrite.deleteFile((DataFile) file.copy());
        }
      }
      reader.close();
    }
    for (int i = 0; i < added.size(); i++) {
      overwrite.addFile((DataFile) added.get(i));
    }
    overwrite.commit();
  }

  private RowDelta newRowDelta() {
    RowDelta delta = table().newRowDelta();
    delta.scanManifestsWith(DIRECT);
    Snapshot head = current.currentSnapshot();
    return head == null ? delta : delta.validateFromSnapshot(head.snapshotId());
  }

  /** Tasks by the path of their data file, with the applicable deletes. */
  private Map tasks() {
    Map byPath = new HashMap();
    Iterator tasks = ((TableScan) table().newScan().planWith(DIRECT)).planFiles().iterator();
    while (tasks.hasNext()) {
      FileScanTask task = (FileScanTask) tasks.next();
      byPath.put(task.file().location(), task);
    }
    return byPath;
  }

  // -- files

  public DataFile writeData(int specId, String partition, String format, String rows) throws Exception {
    PartitionSpec spec = current.spec(specId);
    GenericAppenderFactory factory = new GenericAppenderFactory(current.schema(), spec);
    factory.setAll(current.properties());
    DataWriter writer =
        factory.newDataWriter(newFile("data", format), FileFormat.fromString(format), partition(spec, partition));
    writeAll(writer, records(current.schema(), rows));
    return writer.toDataFile();
  }

  /** Writes equality deletes, as a writer that still uses schema {@code schemaId}. */
  public DeleteFile writeEqualityDeletes(
      int schemaId, List ids, int specId, String partition, String format, String rows) throws Exception {
    PartitionSpec spec = current.spec(specId);
    int[] fieldIds = new int[ids.size()];
    java.util.Set wanted = new java.util.LinkedHashSet();
    for (int i = 0; i < fieldIds.length; i++) {
      fieldIds[i] = ((Number) ids.get(i)).intValue();
      wanted.add(Integer.valueOf(fieldIds[i]));
    }
    Schema schema = (Schema) current.schemasById().get(Integer.valueOf(schemaId));
    Schema keys = TypeUtil.select(schema, wanted);
    GenericAppenderFactory factory = new GenericAppenderFactory(schema, spec, fieldIds, keys, null);
    EqualityDeleteWriter writer =
        factory.newEqDeleteWriter(newFile("equality", format), FileFormat.fromString(format), partition(spec, partition));
    writeAll(writer, records(keys, rows));
    return writer.toDeleteFile();
  }

  /**
   * {@code positions}: positions by data file, in the order in which they are written.  Without {@code wholePaths},
   * bounds are truncated, so that they do not identify the data files.
   */
  public DeleteFile writePositionDeletes(
      int specId, String partition, String format, String positions, boolean wholePaths) throws Exception {
    PartitionSpec spec = current.spec(specId);
    GenericAppenderFactory factory =
        new GenericAppenderFactory(wholePaths ? table() : null, current.schema(), spec, null, null, null, null);
    PositionDeleteWriter writer =
        factory.newPosDeleteWriter(newFile("position", format), FileFormat.fromString(format), partition(spec, partition));
    PositionDelete delete = PositionDelete.create();
    Iterator paths = JSON.readTree(positions).fields();
    while (paths.hasNext()) {
      Map.Entry found = (Map.Entry) paths.next();
      JsonNode list = (JsonNode) found.getValue();
      for (int i = 0; i < list.size(); i++) {
        writer.write(delete.set((String) found.getKey(), ((JsonNode) list.get(i)).longValue()));
      }
    }
    writer.close();
    return writer.toDeleteFile();
  }

  /** Commits a Puffin file with a vector per data file; each includes the positions that are already deleted. */
  public void deleteByVectors(String positions) throws Exception {
    final Map before = tasks();
    final BaseDeleteLoader loader =
        new BaseDeleteLoader(
            new Function() {
              public Object apply(Object delete) {
                return io.newInputFile(((DeleteFile) delete).location());
              }
            });
    BaseDVFileWriter writer =
        new BaseDVFileWriter(
            vectorFiles(),
            new Function() {
              public Object apply(Object path) {
                List deletes = new ArrayList();
                Iterator applied = ((FileScanTask) before.get(path)).deletes().iterator();
                while (applied.hasNext()) {
                  DeleteFile delete = (DeleteFile) applied.next();
                  if (delete.content() == FileContent.POSITION_DELETES) {
                    deletes.add(delete);
                  }
                }
                return deletes.isEmpty() ? null : loader.loadPositionDeletes(deletes, (String) path);
              }
            });
    Iterator paths = JSON.readTree(positions).fields();
    while (paths.hasNext()) {
      Map.Entry found = (Map.Entry) paths.next();
      FileScanTask task = (FileScanTask) before.get(found.getKey());
      JsonNode list = (JsonNode) found.getValue();
      for (int i = 0; i < list.size(); i++) {
        writer.delete(
            (String) found.getKey(), ((JsonNode) list.get(i)).longValue(), task.spec(), task.partition());
      }
    }
    writer.close();
    RowDelta delta = newRowDelta();
    List added = writer.result().deleteFiles();
    for (int i = 0; i < added.size(); i++) {
      delta.addDeletes((DeleteFile) added.get(i));
    }
    List replaced = writer.result().rewrittenDeleteFiles();
    for (int i = 0; i < replaced.size(); i++) {
      delta.removeDeletes((DeleteFile) replaced.get(i));
    }
    delta.commit();
  }

  /** Writes vectors of data files that are not yet in the table, for the commit that adds both. */
  public List writeVectors(int specId, String partition, String positions) throws Exception {
    PartitionSpec spec = current.spec(specId);
    BaseDVFileWriter writer = new BaseDVFileWriter(vectorFiles(), NO_VECTOR);
    Iterator paths = JSON.readTree(positions).fields();
    while (paths.hasNext()) {
      Map.Entry found = (Map.Entry) paths.next();
      JsonNode list = (JsonNode) found.getValue();
      for (int i = 0; i < list.size(); i++) {
        long position = ((JsonNode) list.get(i)).longValue();
        writer.delete((String) found.getKey(), position, spec, partition(spec, partition));
      }
    }
    writer.close();
    return writer.result().deleteFiles();
  }

  // -- reading

  /** The rows of the current snapshot, each an object by field id, optionally with row lineage. */
  public String rows(boolean withLineage) throws Exception {
    Schema schema = current.schema();
    if (withLineage) {
      List columns = new ArrayList(schema.columns());
      columns.add(MetadataColumns.ROW_ID);
      columns.add(MetadataColumns.LAST_UPDATED_SEQUENCE_NUMBER);
      schema = new Schema(columns);
    }
    List found = new ArrayList();
    CloseableIterable records = IcebergGenerics.read(table()).project(schema).build();
    Iterator iterator = records.iterator();
    while (iterator.hasNext()) {
      found.add(plain(schema.asStruct(), iterator.next()));
    }
    records.close();
    return JSON.writeValueAsString(found);
  }

  /** The values of column {@code id} in the rows that a planned scan with a filter finds. */
  public List idsWhere(Expression filter) throws Exception {
    List found = new ArrayList();
    CloseableIterable records = IcebergGenerics.read(table()).where(filter).build();
    Iterator iterator = records.iterator();
    while (iterator.hasNext()) {
      found.add(((org.apache.iceberg.data.Record) iterator.next()).getField("id"));
    }
    records.close();
    return found;
  }

  /** The same without planning, by a filter on each row: a list for each filter. */
  public List idsWithoutPlanning(List filters) throws Exception {
    Types.StructType struct = current.schema().asStruct();
    InternalRecordWrapper wrapper = new InternalRecordWrapper(struct);
    List found = new ArrayList();
    for (int i = 0; i < filters.size(); i++) {
      found.add(new ArrayList());
    }
    CloseableIterable records = IcebergGenerics.read(table()).build();
    Iterator iterator = records.iterator();
    while (iterator.hasNext()) {
      org.apache.iceberg.data.Record record = (org.apache.iceberg.data.Record) iterator.next();
      for (int i = 0; i < filters.size(); i++) {
        Evaluator evaluator = new Evaluator(struct, (Expression) filters.get(i));
        if (evaluator.eval(wrapper.wrap((StructLike) record))) {
          ((List) found.get(i)).add(record.getField("id"));
        }
      }
    }
    records.close();
    return found;
  }

  /** The rows of a retained snapshot, by the schema of the snapshot. */
  public String rowsOf(long snapshotId) throws Exception {
    Schema schema = (Schema) table().schemas().get(table().snapshot(snapshotId).schemaId());
    List found = new ArrayList();
    CloseableIterable records = IcebergGenerics.read(table()).useSnapshot(snapshotId).project(schema).build();
    Iterator iterator = records.iterator();
    while (iterator.hasNext()) {
      found.add(plain(schema.asStruct(), iterator.next()));
    }
    records.close();
    return JSON.writeValueAsString(found);
  }

  /** Every file that a snapshot, the metadata log or a statistics entry needs. */
  public List reachable() throws Exception {
    List found = new ArrayList(ReachableFileUtil.metadataFileLocations(table(), false));
    found.addAll(ReachableFileUtil.manifestListLocations(table()));
    found.addAll(ReachableFileUtil.statisticsFilesLocations(table()));
    Map manifests = new HashMap();
    Iterator snapshots = table().snapshots().iterator();
    while (snapshots.hasNext()) {
      Iterator listed = ((Snapshot) snapshots.next()).allManifests(io).iterator();
      while (listed.hasNext()) {
        ManifestFile manifest = (ManifestFile) listed.next();
        manifests.put(manifest.path(), manifest);
      }
    }
    found.addAll(manifests.keySet());
    Iterator unread = manifests.values().iterator();
    while (unread.hasNext()) {
      ManifestFile manifest = (ManifestFile) unread.next();
      ManifestReader reader =
          manifest.content() == ManifestContent.DATA
              ? (ManifestReader) ManifestFiles.read(manifest, io, current.specsById())
              : (ManifestReader) ManifestFiles.readDeleteManifest(manifest, io, current.specsById());
      Iterator files = reader.iterator();
      while (files.hasNext()) {
        found.add(((ContentFile) files.next()).location());
      }
      reader.close();
    }
    return found;
  }

  // -- TableOperations

  public TableMetadata current() {
    return current;
  }

  public TableMetadata refresh() {
    return current;
  }

  public void commit(TableMetadata base, TableMetadata metadata) {
    if (base != current) {
      throw new CommitFailedException("somebody else was faster", new Object[0]);
    }
    String name = String.format("%05d-%s.metadata.json", new Object[] {Integer.valueOf(version++), UUID.randomUUID()});
    String path = metadata.location() + "/metadata/" + name;
    TableMetadataParser.write(metadata, io.newOutputFile(path));
    current = TableMetadataParser.read(io, path);
  }

  public FileIO io() {
    return io;
  }

  public String metadataFileLocation(String name) {
    return current.location() + "/metadata/" + name;
  }

  public LocationProvider locationProvider() {
    return LocationProviders.locationsFor(current.location(), current.properties());
  }

  // -- the rest

  private EncryptedOutputFile newFile(String kind, String format) {
    String name = String.format("%s-%05d.%s", new Object[] {kind, Integer.valueOf(files++), format});
    return EncryptedFiles.plainAsEncryptedOutput(
        io.newOutputFile(current.location() + "/data/" + UUID.randomUUID() + "-" + name));
  }

  private OutputFileFactory vectorFiles() {
    return OutputFileFactory.builderFor(table(), 1, files++).format(FileFormat.PUFFIN).suffix("deletes").build();
  }

  private static void writeAll(FileWriter writer, List records) throws Exception {
    for (int i = 0; i < records.size(); i++) {
      writer.write((Object) records.get(i));
    }
    writer.close();
  }

  /** The partition of values by position, or of a row by field id. */
  private static StructLike partition(PartitionSpec spec, String json) throws Exception {
    if (spec.isUnpartitioned() && spec.fields().isEmpty()) {
      return null;
    }
    JsonNode told = JSON.readTree(json);
    if (told.isArray()) {
      return (StructLike) internalPartition(spec, told);
    }
    Types.StructType struct = spec.schema().asStruct();
    PartitionKey key = new PartitionKey(spec, spec.schema());
    key.partition(new InternalRecordWrapper(struct).wrap((StructLike) value(struct, told)));
    return key;
  }

  private static StructLike internalPartition(PartitionSpec spec, JsonNode values) {
    PartitionData data = new PartitionData(spec.partitionType());
    for (int i = 0; i < spec.fields().size(); i++) {
      JsonNode value = (JsonNode) values.get(i);
      Type type = ((Types.NestedField) spec.partitionType().fields().get(i)).type();
      data.set(i, value.isNull() ? null : SingleValueParser.fromJson(type, value));
    }
    return data;
  }

  /** The partition of a row under a spec by Java's transforms, as JSON. */
  public String partitionOf(int specId, String rows) throws Exception {
    PartitionSpec spec = current.spec(specId);
    Schema schema = current.schema();
    PartitionKey key = new PartitionKey(spec, schema);
    InternalRecordWrapper wrapper = new InternalRecordWrapper(schema.asStruct());
    List found = new ArrayList();
    List records = records(schema, rows);
    for (int i = 0; i < records.size(); i++) {
      key.partition(wrapper.wrap((StructLike) records.get(i)));
      List values = new ArrayList();
      for (int j = 0; j < spec.fields().size(); j++) {
        Type type = ((Types.NestedField) spec.partitionType().fields().get(j)).type();
        Object value = key.get(j, Object.class);
        values.add(value == null ? null : JSON.readTree(SingleValueParser.toJson(type, value)));
      }
      found.add(values);
    }
    return JSON.writeValueAsString(found);
  }

  private static List records(Schema schema, String rows) throws Exception {
    JsonNode list = JSON.readTree(rows);
    List records = new ArrayList();
    for (int i = 0; i < list.size(); i++) {
      records.add(value(schema.asStruct(), (JsonNode) list.get(i)));
    }
    return records;
  }

  /** A value for Iceberg's generic writers. */
  private static Object value(Type type, JsonNode json) {
    if (json == null || json.isNull()) {
      return null;
    }
    String name = type.typeId().name();
    if (name.equals("BOOLEAN")) return Boolean.valueOf(json.booleanValue());
    if (name.equals("INTEGER")) return Integer.valueOf(json.intValue());
    if (name.equals("LONG")) return Long.valueOf(json.longValue());
    if (name.equals("FLOAT")) return Float.valueOf(json.asText());
    if (name.equals("DOUBLE")) return Double.valueOf(json.asText());
    if (name.equals("STRING")) return json.textValue();
    if (name.equals("DECIMAL")) return new BigDecimal(json.textValue());
    if (name.equals("DATE")) return LocalDate.parse(json.textValue());
    if (name.equals("TIME")) return LocalTime.parse(json.textValue());
    if (name.equals("UUID")) return UUID.fromString(json.textValue());
    if (name.equals("FIXED")) return bytes(json.textValue());
    if (name.equals("BINARY")) return ByteBuffer.wrap(bytes(json.textValue()));
    if (name.equals("TIMESTAMP")) return moment(((Types.TimestampType) type).shouldAdjustToUTC(), json.textValue());
    if (name.equals("TIMESTAMP_NANO"))
      return moment(((Types.TimestampNanoType) type).shouldAdjustToUTC(), json.textValue());
    if (name.equals("VARIANT"))
      return Variant.from(ByteBuffer.wrap(bytes(json.textValue())).order(ByteOrder.LITTLE_ENDIAN));
    if (name.equals("STRUCT")) {
      Types.StructType struct = (Types.StructType) type;
      GenericRecord record = GenericRecord.create(struct);
      for (int i = 0; i < struct.fields().size(); i++) {
        Types.NestedField field = (Types.NestedField) struct.fields().get(i);
        record.set(i, value(field.type(), (JsonNode) json.get(String.valueOf(field.fieldId()))));
      }
      return record;
    }
    if (name.equals("LIST")) {
      List list = new ArrayList();
      for (int i = 0; i < json.size(); i++) {
        list.add(value(((Types.ListType) type).elementType(), (JsonNode) json.get(i)));
      }
      return list;
    }
    if (name.equals("MAP")) {
      Types.MapType map = (Types.MapType) type;
      Map entries = new LinkedHashMap();
      for (int i = 0; i < json.size(); i++) {
        JsonNode pair = (JsonNode) json.get(i);
        entries.put(value(map.keyType(), (JsonNode) pair.get(0)), value(map.valueType(), (JsonNode) pair.get(1)));
      }
      return entries;
    }
    throw new IllegalArgumentException("no values of type " + type);
  }

  /** The inverse: a value that Jackson writes and {@link #value} reads. */
  private static Object plain(Type type, Object value) {
    if (value == null || value instanceof Boolean || value instanceof Integer || value instanceof Long) {
      return value;
    }
    if (value instanceof byte[]) return hex((byte[]) value);
    if (value instanceof ByteBuffer) return hex(ByteBuffers.toByteArray((ByteBuffer) value));
    if (value instanceof Variant) return ((Variant) value).value().toString();
    if (value instanceof BigDecimal) return ((BigDecimal) value).toPlainString();
    if (value instanceof StructLike) {
      Types.StructType struct = (Types.StructType) type;
      Map fields = new LinkedHashMap();
      for (int i = 0; i < struct.fields().size(); i++) {
        Types.NestedField field = (Types.NestedField) struct.fields().get(i);
        fields.put(String.valueOf(field.fieldId()), plain(field.type(), ((StructLike) value).get(i, Object.class)));
      }
      return fields;
    }
    if (value instanceof List) {
      List list = new ArrayList();
      for (int i = 0; i < ((List) value).size(); i++) {
        list.add(plain(((Types.ListType) type).elementType(), ((List) value).get(i)));
      }
      return list;
    }
    if (value instanceof Map) {
      List pairs = new ArrayList();
      Iterator entries = ((Map) value).entrySet().iterator();
      while (entries.hasNext()) {
        Map.Entry entry = (Map.Entry) entries.next();
        List pair = new ArrayList();
        pair.add(plain(((Types.MapType) type).keyType(), entry.getKey()));
        pair.add(plain(((Types.MapType) type).valueType(), entry.getValue()));
        pairs.add(pair);
      }
      return pairs;
    }
    return value.toString();
  }

  private static Object moment(boolean withZone, String text) {
    return withZone ? (Object) OffsetDateTime.parse(text) : (Object) LocalDateTime.parse(text);
  }

  private static byte[] bytes(String hex) {
    byte[] made = new byte[hex.length() / 2];
    for (int i = 0; i < made.length; i++) {
      made[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
    }
    return made;
  }

  private static String hex(byte[] raw) {
    StringBuilder made = new StringBuilder();
    for (int i = 0; i < raw.length; i++) {
      made.append(String.format("%02x", new Object[] {Byte.valueOf(raw[i])}));
    }
    return made.toString();
  }
}

/** Local files under {@code file:} addresses. */
class LocalFileIO implements FileIO {
  public InputFile newInputFile(String path) {
    return new LocalInput(path);
  }

  public OutputFile newOutputFile(String path) {
    return new LocalOutput(path);
  }

  public void deleteFile(String path) {
    new java.io.File(LocalOutput.path(path)).delete();
  }
}

/** Keeps the address of the file as the caller spells it, because manifests and position deletes repeat it. */
class LocalOutput implements OutputFile {
  private final String address;
  private final OutputFile file;

  LocalOutput(String address) {
    this.address = address;
    this.file = Files.localOutput(path(address));
  }

  static String path(String address) {
    return address.startsWith("file:") ? address.substring(5).replaceFirst("^//", "") : address;
  }

  public PositionOutputStream create() {
    return file.create();
  }

  public PositionOutputStream createOrOverwrite() {
    return file.createOrOverwrite();
  }

  public String location() {
    return address;
  }

  public InputFile toInputFile() {
    return new LocalInput(address);
  }
}

class LocalInput implements InputFile {
  private final String address;
  private final InputFile file;

  LocalInput(String address) {
    this.address = address;
    this.file = Files.localInput(LocalOutput.path(address));
  }

  public long getLength() {
    return file.getLength();
  }

  public SeekableInputStream newStream() {
    return file.newStream();
  }

  public String location() {
    return address;
  }

  public boolean exists() {
    return file.exists();
  }
}
