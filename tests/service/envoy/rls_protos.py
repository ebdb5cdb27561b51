"""Envoy's two messages as classes of the real protobuf runtime, with Envoy's field numbers, made without a compiler.

Field numbers and types are those of `envoy/service/ratelimit/v3/rls.proto`, of the messages that it names, and of the
well-known types, which the runtime brings along.
"""

from google.protobuf import (  # noqa: F401 - known by import
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

F = descriptor_pb2.FieldDescriptorProto
WELL_KNOWN = ("duration", "struct", "timestamp", "wrappers")


def message(name, *fields, inner=()):
    """(name, number, type) of every field; a type is a scalar's name, or a message's, with * in front if repeated."""
    made = descriptor_pb2.DescriptorProto(name=name)
    for field, number, written in fields:
        repeated, kind = written.startswith("*"), written.lstrip("*")
        proto = made.field.add(name=field, number=number)
        proto.label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
        if kind.startswith("."):
            proto.type, proto.type_name = F.TYPE_MESSAGE, kind
        elif kind.startswith("="):
            proto.type, proto.type_name = F.TYPE_ENUM, kind[1:]
        else:
            proto.type = getattr(F, f"TYPE_{kind.upper()}")
    made.nested_type.extend(inner)
    return made


def build():
    file = descriptor_pb2.FileDescriptorProto(name="rls_for_tests.proto", package="rls", syntax="proto3")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in WELL_KNOWN)
    for name, values in (("Code", 3), ("Unit", 8)):
        enum = file.enum_type.add(name=name)
        for number in range(values):
            enum.value.add(name=f"{name.upper()}_{number}", number=number)
    file.message_type.extend(
        [
            message("Entry", ("key", 1, "string"), ("value", 2, "string")),
            message("Override", ("requests_per_unit", 1, "uint32"), ("unit", 2, "=.rls.Unit")),
            message(
                "Descriptor",
                ("entries", 1, "*.rls.Entry"),
                ("limit", 2, ".rls.Override"),
                ("hits_addend", 3, ".google.protobuf.UInt64Value"),
                ("is_negative_hits", 4, "bool"),
            ),
            message(
                "Request",
                ("domain", 1, "string"),
                ("descriptors", 2, "*.rls.Descriptor"),
                ("hits_addend", 3, "uint32"),
            ),
            message(
                "Limit", ("requests_per_unit", 1, "uint32"), ("unit", 2, "=.rls.Unit"), ("name", 3, "string")
            ),
            message(
                "Quota",
                ("requests", 1, "uint32"),
                ("valid_until", 2, ".google.protobuf.Timestamp"),
                ("id", 3, "string"),
            ),
            message(
                "Status",
                ("code", 1, "=.rls.Code"),
                ("current_limit", 2, ".rls.Limit"),
                ("limit_remaining", 3, "uint32"),
                ("duration_until_reset", 4, ".google.protobuf.Duration"),
                ("quota", 5, ".rls.Quota"),
            ),
            message("Header", ("key", 1, "string"), ("value", 2, "string"), ("raw_value", 3, "bytes")),
            message(
                "Response",
                ("overall_code", 1, "=.rls.Code"),
                ("statuses", 2, "*.rls.Status"),
                ("response_headers_to_add", 3, "*.rls.Header"),
                ("request_headers_to_add", 4, "*.rls.Header"),
                ("raw_body", 5, "bytes"),
                ("dynamic_metadata", 6, ".google.protobuf.Struct"),
                ("quota", 7, ".rls.Quota"),
            ),
        ]
    )
    pool = descriptor_pool.Default()
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"rls.{name}"))
        for name in (each.name for each in file.message_type)
    }


CLASSES = build()
Request, Response = CLASSES["Request"], CLASSES["Response"]
