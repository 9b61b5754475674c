"""What the bridge and the evaluation both write, and what else the bridge may import. Private to users."""

from ors_client._arguments import checked
from ors_client._brief import brief
from ors_client._http.background import LoopThread, wait
from ors_client._http.credentials import Secrets, check_headers, credentials_in, secret_values
from ors_client._http.process import OwnProcess
from ors_client._http.redaction import get_logger

from .block_recorder import BlockRecorder, is_one_text
from .block_text import flatten, images_absent, placeholder, plain_text
from .episode_log import REFUSALS, CallEntry, EpisodeLog, Failure, refusal_text
from .json_schema import SchemaResolver, mapping, sequence
from .task_file import read_task_file
from .versions import known_versions

__all__ = [
    "REFUSALS",
    "BlockRecorder",
    "CallEntry",
    "EpisodeLog",
    "Failure",
    "LoopThread",
    "OwnProcess",
    "SchemaResolver",
    "Secrets",
    "brief",
    "check_headers",
    "checked",
    "credentials_in",
    "flatten",
    "get_logger",
    "images_absent",
    "is_one_text",
    "known_versions",
    "mapping",
    "placeholder",
    "plain_text",
    "read_task_file",
    "refusal_text",
    "secret_values",
    "sequence",
    "wait",
]
