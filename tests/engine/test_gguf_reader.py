"""A GGUF file is parsed once, and again when it has changed."""

import gguf
import numpy as np

from unmdpo.engine.gguf_reader import remember_gguf


def write(path, words):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", words)
    writer.add_tensor("token_embd.weight", np.arange(8, dtype=np.float32).reshape(2, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_once_until_it_changes(tmp_path):
    remember_gguf()
    path = tmp_path / "model.gguf"
    write(path, ["one", "two"])
    first = gguf.GGUFReader(str(path))
    assert gguf.GGUFReader(str(path)) is first
    assert first.get_field("tokenizer.ggml.tokens").contents() == ["one", "two"]
    assert first.tensors[0].data.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    path.unlink()
    write(path, ["three", "four", "five"])
    assert gguf.GGUFReader(str(path)).get_field("tokenizer.ggml.tokens").contents() == ["three", "four", "five"]
