"""What a tool returns arrives to the letter, however long it is and wherever the server cuts it."""

import pytest

from fixtures.environments.awkward import CHUNK, backslash_n_text, exact_text, html_text, lines_text, weird_text
from ors_client import TaskRef, ToolFailed

pytestmark = pytest.mark.anyio

TASK = TaskRef("train", 0)
BACKENDS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


async def text_of(client, tool, arguments=None):
    async with client.environment("awkwardenvironment").session(TASK) as session:
        return (await session.call_tool(tool, arguments)).text


@BACKENDS
async def test_million_spaces_arrive_as_a_million_spaces(client):
    assert await text_of(client, "spaces", {"count": 1_000_000}) == " " * 1_000_000


async def test_five_million_awkward_characters_arrive_identical(client):
    # `==` alone: pytest's diff of two such texts would take minutes.
    equal = await text_of(client, "weird", {"count": 5_000_000}) == weird_text(5_000_000)
    assert equal


async def test_blanks_after_chunk_boundaries_are_kept(client):
    assert await text_of(client, "lines") == lines_text()


@pytest.mark.parametrize("length", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1])
async def test_result_around_a_chunk_boundary_is_whole(client, length):
    assert await text_of(client, "exact", {"json_length": length}) == exact_text(length)


@pytest.mark.parametrize(("length", "chunks"), [(CHUNK, 0), (CHUNK + 1, 1)])
async def test_server_cuts_results_where_these_tests_think(client, stranger, length, chunks):
    async with client.environment("awkwardenvironment").session(TASK) as session:
        await session.get_prompt()
        answer = await stranger.post(
            "/awkwardenvironment/call",
            json={"name": "exact", "input": {"json_length": length}},
            headers={"x-session-id": session.session_id},
        )
    assert answer.text.count("event: chunk\r\n") == chunks
    assert answer.text.count("event: end\r\n") == 1


async def test_escape_cut_between_its_two_characters_is_a_line_end(client):
    assert await text_of(client, "backslash_n") == backslash_n_text()


@pytest.mark.parametrize(("tool", "text"), [("blank", ""), ("html", html_text())])
async def test_text_that_looks_like_something_else_is_kept(client, tool, text):
    assert await text_of(client, tool) == text


async def test_prompt_keeps_its_blanks_and_separators(client):
    async with client.environment("awkwardenvironment").session(TASK) as session:
        [block] = await session.get_prompt()
    assert block.text == "  leading blanks, a separator \u2028 and a line end\n"


async def test_no_blocks_are_an_empty_text(client):
    async with client.environment("awkwardenvironment").session(TASK) as session:
        output = await session.call_tool("nothing")
    assert (output.blocks, output.text, output.images) == ([], "", [])


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("", ""),
        ("  two blanks before", "  two blanks before"),
        ("two\nlines\n", "two\nlines\n"),
        ("a\r\nb\rc", "a\nb\nc"),  # a stream's lines end in any of the three, so which one it was is lost
        ("separator \u2028 \u0085", "separator \u2028 \u0085"),
        ("unknown task_id", "unknown task_id"),  # what servers say of an expired call, here said by a tool
    ],
)
async def test_what_a_tool_raised_arrives_word_for_word(client, said, heard):
    async with client.environment("failingenvironment").session(TASK) as session:
        with pytest.raises(ToolFailed) as caught:
            await session.call_tool("boom", {"message": said})
    assert caught.value.detail == heard
