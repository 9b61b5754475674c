"""A recorded episode -> the requests that were made of the model, one for each of its turns."""

from __future__ import annotations

from ors_client._arguments import checked
from ors_client._types import JSONObject, Message
from ors_client.formats import OpenAIChat
from ors_client.record import EpisodeRecord


@checked
def requests(episode: EpisodeRecord) -> list[JSONObject]:
    """Return the body of the request for each reply of an episode, as `ChatModel.ask` sends it; the last may lack one.

    Args:
        episode: Of an evaluation, as `ors_client.record.read` yields it.

    Raises:
        ValueError: The episode was not recorded by an evaluation, or by one before version 2 of the record.
    """
    if episode.run is None or episode.tools is None:
        raise ValueError("Only an episode of an evaluation has the settings and tools that requests were made of.")
    form = OpenAIChat(episode.tools.tools, reasoning_history=episode.run.settings.get("reasoning_history", "all"))
    start: JSONObject = {"model": episode.run.model, **episode.run.parameters}
    conversation = [Message.model_validate(message) for message in episode.conversation]
    replies = [
        position
        for position in range(len(episode.opening_messages), len(conversation))
        if conversation[position].role == "assistant"
    ]
    if (episode.usage or {}).get("requests", 0) > len(replies):  # the episode ended before the last one was answered
        replies.append(len(conversation))
    return [start | form.request(conversation[:position]) for position in replies]
