"""What worker processes do in the tests: functions by name, as other processes import them."""

from ors_client import AsyncClient, Client, TaskRef

COUNT = TaskRef("train", 0)


def count_once(url: str) -> str:
    """Open a client of one's own and step once."""
    with Client(url) as client, client.environment("counterenvironment").session(COUNT) as session:
        return session.call_tool("step").text


def fail(url: str) -> str:
    """Meet an error of the server."""
    with Client(url) as client, client.environment("failingenvironment").session(COUNT) as session:
        return session.call_tool("boom", {"message": "a\nb"}).text


def raise_it(error: Exception) -> None:
    """Send an error home."""
    raise error


async def count_once_async(client: AsyncClient) -> str:
    """Step once in a session of its own."""
    async with client.environment("counterenvironment").session(COUNT) as session:
        return (await session.call_tool("step")).text
