"""The Qwen2 architecture as config.json states it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2Config:
    """Field names are Hugging Face's."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def projection_shape(self, projection: str) -> tuple[int, int]:
        """(out, in) of a projection's weight."""
        hidden, kv = self.hidden_size, self.num_key_value_heads * self.head_dim
        return {
            "q_proj": (hidden, hidden),
            "k_proj": (kv, hidden),
            "v_proj": (kv, hidden),
            "o_proj": (hidden, hidden),
            "gate_proj": (self.intermediate_size, hidden),
            "up_proj": (self.intermediate_size, hidden),
            "down_proj": (hidden, self.intermediate_size),
        }[projection]
