"""A vision model of a hundred thousand random parameters, with a processor made of parts: no hub is asked.

The processor leaves out videos, whose own needs torchvision; images go the way that they go in a large model.
"""

import torch
from transformers import (
    PreTrainedTokenizerFast,
    ProcessorMixin,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from trl.chat_template_utils import qwen3_vl_chat_template

from fixtures.demo._model import build_tokenizer

_VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
_PATCH = 16
_SIDE = 2 * _PATCH  # the least that gives one token: two by two patches are merged


class ImagesOnly(Qwen3VLProcessor):
    """The processor of Qwen3-VL without its part for videos."""

    def __init__(self, image_processor=None, tokenizer=None, chat_template=None):
        for name in _VISION:
            attribute = name.strip("<|>").replace("_pad", "") + "_token"
            setattr(self, attribute, name)
            setattr(self, f"{attribute}_id", tokenizer.convert_tokens_to_ids(name))
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


def build_processor(texts: list[str]) -> ImagesOnly:
    """Make a processor whose tokenizer is trained on these texts."""
    tokenizer: PreTrainedTokenizerFast = build_tokenizer(texts, [])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *_VISION]})
    tokenizer.chat_template = qwen3_vl_chat_template  # byte for byte: TRL recognises a template by equality
    pixels = _SIDE * _SIDE
    images = Qwen2VLImageProcessorPil(patch_size=_PATCH, min_pixels=pixels, max_pixels=pixels)
    return ImagesOnly(images, tokenizer, chat_template=qwen3_vl_chat_template)


def build_vision_model(processor: ImagesOnly) -> Qwen3VLForConditionalGeneration:
    """Make the model, the same every time."""
    torch.manual_seed(0)
    tokenizer = processor.tokenizer
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]},
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 32,
        "patch_size": _PATCH,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 16,
    }
    model = Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(
            text_config=text,
            vision_config=vision,
            image_token_id=processor.image_token_id,
            video_token_id=processor.video_token_id,
            vision_start_token_id=processor.vision_start_token_id,
            vision_end_token_id=processor.vision_end_token_id,
            tie_word_embeddings=True,
        )
    )
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model
