"""The files of a small Llama: GGUF for llama.cpp, and a Hugging Face folder. Used by ``train_small_models.py``.

The weights are in GGUF's order, with rotary pairs next to each other. In the Hugging Face folder the rows of q and k
are reordered: the first elements of all pairs come first, then the second elements.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file, save_file
from small_chat import ChatForm
from small_llama import NORM_EPS, ROPE_BASE, Shape, SmallLlama, TokenizerKind, token_id
from tokenizers import Tokenizer
from torch import Tensor


def write_gguf(
    path: Path,
    model: SmallLlama,
    tokenizer: Tokenizer,
    kind: TokenizerKind,
    name: str,
    chat: ChatForm | None = None,
    *,
    half: bool = True,
) -> None:
    """Write the model as one GGUF file for llama.cpp; with `half`, its matrices have half precision.

    Without a `chat` form, the file has no chat template.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    shape, w = model.shape, gguf.GGUFWriter(path, "llama")
    w.add_name(name)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if half else gguf.LlamaFileType.ALL_F32)
    w.add_vocab_size(shape.vocabulary)
    w.add_context_length(shape.context)
    w.add_embedding_length(shape.width)
    w.add_block_count(shape.layers)
    w.add_feed_forward_length(shape.hidden)
    w.add_head_count(shape.heads)
    w.add_head_count_kv(shape.heads)
    w.add_rope_dimension_count(shape.head_width)
    w.add_rope_freq_base(ROPE_BASE)
    w.add_layer_norm_rms_eps(NORM_EPS)
    bpe = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(kind.pre_tokenizer)
    w.add_token_list(tokens)
    w.add_token_types([control if token in kind.specials else normal for token in tokens])
    w.add_token_merges([" ".join(merge) if isinstance(merge, list) else merge for merge in bpe["merges"]])
    end_id = token_id(tokenizer, kind.end)
    w.add_eos_token_id(end_id)
    if chat and chat.end != kind.end:
        w.add_eot_token_id(token_id(tokenizer, chat.end))
    # a start token must be named even if there is none; otherwise llama.cpp assumes GPT-2's
    w.add_bos_token_id(token_id(tokenizer, kind.start) if kind.start else end_id)
    w.add_add_bos_token(kind.start is not None)
    if chat:
        w.add_chat_template(chat.template)
    tied = model.output.weight is model.token_embd.weight
    for key, value in model.state_dict().items():
        if tied and key == "output.weight":  # llama.cpp uses the embeddings instead
            continue
        dtype = np.float16 if half and value.ndim == 2 else np.float32
        w.add_tensor(key, value.cpu().numpy().astype(dtype))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


_HF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_tensors(model: SmallLlama) -> dict[str, Tensor]:
    """The weights with the names and the row order of Hugging Face's LlamaForCausalLM."""
    shape, result = model.shape, {}
    for key, weight in model.state_dict().items():
        *block, name, _ = key.split(".")
        rows = weight
        if name in ("attn_q", "attn_k"):
            pairs = weight.view(shape.heads, shape.head_width // 2, 2, shape.width)
            rows = pairs.transpose(1, 2).reshape(shape.width, shape.width)
        prefix = f"model.layers.{block[1]}." if block else ""
        result[f"{prefix}{_HF_NAMES[name]}.weight"] = rows.half().contiguous()
    return result


def write_hf(folder: Path, model: SmallLlama, tokenizer: Tokenizer, kind: TokenizerKind, chat: ChatForm) -> None:
    """Write the model as a Hugging Face folder, in half precision."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = model.shape
    save_file(hf_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable only by its owner
    tokenizer.save(str(folder / "tokenizer.json"))
    end_id = token_id(tokenizer, kind.end)
    ids = {"bos_token_id": token_id(tokenizer, kind.start) if kind.start else None, "eos_token_id": end_id}
    ends = [token_id(tokenizer, end) for end in dict.fromkeys((kind.end, chat.end))]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.head_width,
        "max_position_embeddings": shape.context,
        "hidden_act": "silu",
        "rms_norm_eps": NORM_EPS,
        "rope_theta": ROPE_BASE,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        **ids,
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": kind.start,
        "eos_token": kind.end,
        "add_bos_token": kind.start is not None,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.context,
        **({"additional_special_tokens": list(chat.tokens)} if chat.tokens else {}),
        "chat_template": chat.template,
    }
    for file, content in (
        ("config.json", config),
        ("tokenizer_config.json", tokenizer_config),
        ("generation_config.json", {**ids, "eos_token_id": ends[0] if len(ends) == 1 else ends, "do_sample": False}),
    ):
        (folder / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_hf(folder: Path) -> tuple[SmallLlama, Tokenizer]:
    """Read a model and its tokenizer back from a folder that `write_hf` wrote."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    shape = Shape(*(config[size] for size in sizes))
    model = SmallLlama(shape)
    tensors, weights = load_file(folder / "model.safetensors"), model.state_dict()
    for (key, weight), (name, rows) in zip(weights.items(), hf_tensors(model).items(), strict=True):
        found = tensors[name].float()
        if rows.shape != found.shape:
            raise ValueError(f"{folder}: {name} has the shape {tuple(found.shape)}, not {tuple(rows.shape)}")
        if key.split(".")[-2] in ("attn_q", "attn_k"):
            halves = found.view(shape.heads, 2, shape.head_width // 2, shape.width)
            found = halves.transpose(1, 2).reshape(shape.width, shape.width)
        weight.copy_(found)
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))
