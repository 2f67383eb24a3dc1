"""Alluxio 2.9.4's gRPC messages, as far as avactl uses them.

Field numbers and types are those of the descriptors in `alluxio-core-transport-2.9.4.jar`. A field that is not listed
here is skipped by protobuf when it is read.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PROTO_PACKAGE = "avactl.alluxio"
_FIELD_TYPE = descriptor_pb2.FieldDescriptorProto
_SCALAR_TYPES = {
    "int64": _FIELD_TYPE.TYPE_INT64,
    "int32": _FIELD_TYPE.TYPE_INT32,
    "bool": _FIELD_TYPE.TYPE_BOOL,
    "string": _FIELD_TYPE.TYPE_STRING,
    "bytes": _FIELD_TYPE.TYPE_BYTES,
    "double": _FIELD_TYPE.TYPE_DOUBLE,
}
"""Enumerations are `int32` here: they have the same encoding."""

_MESSAGE_FIELDS = {
    # grpc/sasl_server.proto
    "SaslMessage": "1 messageType int32, 2 message bytes, 3 clientId string, 4 authenticationScheme int32, "
    "5 channelRef string",
    # grpc/common.proto
    "WorkerNetAddress": "1 host string, 2 rpcPort int32, 4 webPort int32, 7 containerHost string",
    "BlockLocation": "1 workerId int64, 2 workerAddress WorkerNetAddress, 3 tierAlias string",
    "BlockInfo": "1 blockId int64, 2 length int64, 3 locations *BlockLocation",
    # Maps have the encoding of repeated entries.
    "Count": "1 key string, 2 value int64",
    "Attribute": "1 key string, 2 value bytes",
    # grpc/file_system_master.proto
    "FileBlockInfo": "1 blockInfo BlockInfo, 2 offset int64",
    "FileInfo": "1 fileId int64, 3 path string, 4 ufsPath string, 5 length int64, 6 blockSizeBytes int64, "
    "7 creationTimeMs int64, 8 completed bool, 9 folder bool, 10 pinned bool, 12 persisted bool, 13 blockIds *int64, "
    "14 lastModificationTimeMs int64, 19 persistenceState string, 21 fileBlockInfos *FileBlockInfo, 23 mountId int64, "
    "24 inAlluxioPercentage int32, 25 inMemoryPercentage int32, 29 replicationMax int32, 30 replicationMin int32, "
    "31 lastAccessTimeMs int64, 32 xattr *Attribute",
    "CommonOptions": "1 syncIntervalMs int64, 2 ttl int64, 3 ttlAction int32",
    "GetStatusOptions": "1 loadMetadataType int32, 2 commonOptions CommonOptions, 4 updateTimestamps bool",
    "GetStatusRequest": "1 path string, 2 options GetStatusOptions",
    "GetStatusResponse": "1 fileInfo FileInfo",
    "ListStatusOptions": "2 loadMetadataType int32, 3 commonOptions CommonOptions, 4 recursive bool",
    "ListStatusRequest": "1 path string, 2 options ListStatusOptions",
    "ListStatusResponse": "1 fileInfos *FileInfo",
    "SetAttributeOptions": "1 pinned bool, 6 recursive bool, 11 xattr *Attribute, 12 xattrUpdateStrategy int32",
    "SetAttributeRequest": "1 path string, 2 options SetAttributeOptions",
    "FreeOptions": "1 recursive bool, 2 forced bool",
    "FreeRequest": "1 path string, 2 options FreeOptions",
    "DeleteOptions": "1 recursive bool, 2 alluxioOnly bool",
    "DeleteRequest": "1 path string, 2 options DeleteOptions",
    "RenameRequest": "1 path string, 2 dstPath string",
    "CreateDirectoryOptions": "1 recursive bool, 2 allowExists bool, 4 writeType int32, 5 commonOptions CommonOptions",
    "CreateDirectoryRequest": "1 path string, 2 options CreateDirectoryOptions",
    "ScheduleAsyncPersistenceOptions": "2 persistenceWaitTime int64",
    "ScheduleAsyncPersistenceRequest": "1 path string, 2 options ScheduleAsyncPersistenceOptions",
    "MountPointInfo": "1 ufsUri string, 2 ufsType string, 3 ufsCapacityBytes int64, 4 ufsUsedBytes int64, "
    "5 readOnly bool, 8 mountId int64",
    "MountPoint": "1 key string, 2 value MountPointInfo",
    "GetMountTableRequest": "1 checkUfs bool",
    "GetMountTableResponse": "1 mountPoints *MountPoint",
    "Empty": "",
    # grpc/metric_master.proto
    "MetricValue": "1 doubleValue double",
    "Metric": "1 key string, 2 value MetricValue",
    "GetMetricsResponse": "1 metrics *Metric",
    # grpc/block_master.proto
    "WorkerInfo": "1 id int64, 2 address WorkerNetAddress, 3 lastContactSec int32, 4 state string, "
    "5 capacityBytes int64, 6 usedBytes int64, 8 capacityBytesOnTiers *Count, 9 usedBytesOnTiers *Count",
    "GetWorkerInfoListResponse": "1 workerInfos *WorkerInfo",
    # grpc/block_worker.proto, proto/dataserver/protocol.proto
    "OpenUfsBlockOptions": "1 ufs_path string, 2 offset_in_file int64, 3 block_size int64, "
    "4 maxUfsReadConcurrency int32, 5 mountId int64, 6 no_cache bool",
    "CacheRequest": "1 block_id int64, 2 source_host string, 3 source_port int32, "
    "4 open_ufs_block_options OpenUfsBlockOptions, 5 length int64",
    "ReadRequest": "1 block_id int64, 2 offset int64, 3 length int64, 5 chunk_size int64, "
    "6 open_ufs_block_options OpenUfsBlockOptions, 7 offset_received int64",
    "Chunk": "1 data bytes",
    "ReadResponse": "1 chunk Chunk",
    "CreateUfsFileOptions": "1 ufs_path string, 2 owner string, 3 group string, 4 mode int32, 5 mount_id int64",
    "WriteCommand": "1 type int32, 2 id int64, 3 offset int64, 5 flush bool, "
    "6 create_ufs_file_options CreateUfsFileOptions, 10 space_to_reserve int64",
    "WriteRequest": "1 command WriteCommand, 2 chunk Chunk",
    "WriteResponse": "1 offset int64",
}


def _message_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="avactl/alluxio.proto", package=_PROTO_PACKAGE, syntax="proto2")
    for name, fields in _MESSAGE_FIELDS.items():
        message = file.message_type.add(name=name)
        for line in filter(None, map(str.strip, fields.split(","))):
            number, label, kind = line.split()
            field = message.field.add(name=label, number=int(number), label=_FIELD_TYPE.LABEL_OPTIONAL)
            if kind.startswith("*"):
                field.label, kind = _FIELD_TYPE.LABEL_REPEATED, kind[1:]
            if kind in _SCALAR_TYPES:
                field.type = _SCALAR_TYPES[kind]
            else:
                field.type, field.type_name = _FIELD_TYPE.TYPE_MESSAGE, f".{_PROTO_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PROTO_PACKAGE}.{name}"))
        for name in _MESSAGE_FIELDS
    }


MESSAGES: dict[str, Any] = _message_classes()
"""Message classes by name; the names are Alluxio's without its `P`."""
