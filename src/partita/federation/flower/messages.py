"""The messages of the fleet calls, for which Flower has a module for each part of its protocol."""

from partita.errors import MissingExtraError

__all__ = [
    "ActivateNodeRequest",
    "ActivateNodeResponse",
    "ConfirmMessageReceivedRequest",
    "ConfirmMessageReceivedResponse",
    "DeactivateNodeRequest",
    "DeactivateNodeResponse",
    "Node",
    "ObjectTree",
    "ProtoMessage",
    "PullMessagesRequest",
    "PullMessagesResponse",
    "PullObjectRequest",
    "PullObjectResponse",
    "PushMessagesRequest",
    "PushMessagesResponse",
    "PushObjectRequest",
    "PushObjectResponse",
    "SendNodeHeartbeatRequest",
    "SendNodeHeartbeatResponse",
]

try:
    from flwr.proto.fleet_pb2 import (
        ActivateNodeRequest,
        ActivateNodeResponse,
        DeactivateNodeRequest,
        DeactivateNodeResponse,
        PullMessagesRequest,
        PullMessagesResponse,
        PushMessagesRequest,
        PushMessagesResponse,
    )
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
    from flwr.proto.message_pb2 import (
        ConfirmMessageReceivedRequest,
        ConfirmMessageReceivedResponse,
        ObjectTree,
        PullObjectRequest,
        PullObjectResponse,
        PushObjectRequest,
        PushObjectResponse,
    )
    from flwr.proto.message_pb2 import Message as ProtoMessage
    from flwr.proto.node_pb2 import Node
except ImportError:
    raise MissingExtraError("Flower", "flower") from None
