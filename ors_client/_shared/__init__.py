"""What the bridge and the evaluation both write, and what else the bridge may import. Private to users."""

from ors_client._http.credentials import credentials_in

from .block_recorder import BlockRecorder, conversation_text
from .block_text import flatten, images_absent, placeholder, plain_text
from .episode_log import timing_parts

__all__ = [
    "BlockRecorder",
    "conversation_text",
    "credentials_in",
    "flatten",
    "images_absent",
    "placeholder",
    "plain_text",
    "timing_parts",
]
