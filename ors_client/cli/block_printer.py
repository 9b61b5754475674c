"""Blocks, outputs and messages as a person reads them in a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.text import Text

from ors_client import Block, ImageBlock, Message, ReasoningBlock, TextBlock, ToolCallBlock, ToolOutput
from ors_client._shared.block_text import flatten, placeholder

from .images import ImageProtocol, ImageStore, escape_sequence, image_protocol
from .output import one_line, out, printable

_ARGUMENTS = 400  # characters of a call's arguments in a line


class BlockPrinter:
    """Shows what an episode says, and keeps its images.

    Args:
        images: The folder for them.
    """

    def __init__(self, images: Path) -> None:
        self._images = ImageStore(images)
        self._protocol: ImageProtocol | None = image_protocol(os.environ) if sys.stdout.isatty() else None
        self._console = out()

    def blocks(self, blocks: Iterable[Block]) -> None:
        """Show blocks, one after another."""
        for block in flatten(blocks):
            match block:
                case TextBlock():
                    self._console.print(Text(printable(block.text)))
                case ImageBlock():
                    self._image(block)
                case ReasoningBlock():
                    self._console.print(Text(printable(block.text), style="dim italic"))
                case ToolCallBlock():
                    self.call(block.name, block.input)
                case _:
                    self._console.print(Text(printable(placeholder(block)), style="dim"))

    def messages(self, messages: Sequence[Message]) -> None:
        """Show a conversation."""
        for message in messages:
            self._console.print(Text(f"{printable(message.role)}:", style="bold"))
            self.blocks(message.blocks)

    def call(self, tool: str, arguments: object) -> None:
        """Show that a tool is called."""
        line = one_line(json.dumps(arguments, ensure_ascii=False), _ARGUMENTS)
        self._console.print(Text.assemble(("→ ", "bold cyan"), (printable(tool), "bold"), f" {line}"))

    def output(self, output: ToolOutput) -> None:
        """Show what a call came back with."""
        self.blocks(output.blocks)
        reward = "no reward" if output.reward is None else f"reward {output.reward:g}"
        style = "dim" if output.reward is None else "green" if output.reward > 0 else "yellow"
        self._console.print(
            Text.assemble(("← ", "bold cyan"), (reward, style), ", the episode is over" * output.finished)
        )

    def error(self, message: str) -> None:
        """Show that a call came back with an error that a model would be told."""
        self._console.print(Text.assemble(("← ", "bold cyan"), (printable(message), "red")))

    def _image(self, image: ImageBlock) -> None:
        try:
            path = self._images.save(image)
            drawn = None if self._protocol is None else escape_sequence(image, self._protocol)
        except ValueError as error:
            self._console.print(Text(printable(error), style="red"))
            return
        except OSError as error:
            self._console.print(Text(f"[image, {printable(image.mime_type)}, can't be kept: {error}]", style="red"))
            return
        if drawn is not None:
            sys.stdout.write(drawn)
            sys.stdout.flush()
        self._console.print(Text(f"[image, {printable(image.mime_type)}: {path}]", style="dim"), soft_wrap=True)
