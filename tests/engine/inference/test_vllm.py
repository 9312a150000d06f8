"""Policies behind a vLLM server that a stage starts for them.

With `UNMDPO_TEST_VLLM=1` and the command `vllm` on the PATH, the real one answers a panel as this package does.
"""

import os
import socket
import subprocess
import sys
import time

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.worlds.pipeline import recipe, world
from unmdpo.core.errors import UserError
from unmdpo.core.files import read_lines
from unmdpo.engine.inference import vllm
from unmdpo.engine.inference.vllm import Served, serving
from unmdpo.engine.settings import ModelSource
from unmdpo.execute import execute
from unmdpo.results.run import open_run
from unmdpo.store.store import Store

SOURCE = ModelSource(path="base", revision="v2", chat_template={"enable_thinking": False})
# A command that takes vLLM's arguments, and answers with the name it was told to serve under.
STAND_IN = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
arguments = dict(zip(sys.argv, sys.argv[1:]))
if "--dtype" in arguments and arguments["--dtype"] != "float32":
    sys.exit("no such dtype: " + arguments["--dtype"])
name = arguments.get("--served-model-name") or arguments["--lora-modules"].split("=")[0]
class Server(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["model"] == name
        said = {{"role": "assistant", "content": sys.argv[2] + " as " + name}}
        choice = {{"index": 0, "finish_reason": "stop", "message": said}}
        made = json.dumps({{"id": "1", "created": 0, "model": name, "object": "chat.completion", "choices": [choice]}})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(made.encode())
ThreadingHTTPServer(("127.0.0.1", int(arguments["--port"])), Server).serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    place = tmp_path / "bin" / "vllm"
    place.parent.mkdir()
    place.write_text(STAND_IN.format(python=sys.executable))
    place.chmod(0o755)
    monkeypatch.setenv("PATH", str(place.parent))
    monkeypatch.setattr(vllm, "POLL", 0.05)


def opened(folder, generator, **changes):
    described = recipe(folder).model_dump()["evaluation"] | {"generator": generator}
    return open_run(recipe(folder, evaluation=described, **changes), Store(folder / "store"))


def texts(run, name):
    return [row["text"] for row in read_lines(run.artifact(f"generation[{name},one]").file("generations.jsonl"))]


def test_each_policy_gets_a_server(tmp_path, stand_in):
    run = opened(world(tmp_path), "vllm")
    execute(run, until="generation[dpo,one]")
    execute(run, until="generation[initial,one]")
    assert set(texts(run, "dpo")) == {f"{run.policy('dpo')} as policy"}
    assert set(texts(run, "initial")) == {f"{tmp_path / 'model'} as initial"}
    assert run.artifact("generation[dpo,one]").manifest["notes"]["server"] == "vllm"


def test_an_adapter_is_served_beside_its_model(tmp_path, stand_in):
    training = {"updates": 2, "batch": 8, "learning_rate": 1e-3, "warmup": 1, "adapter": {"rank": 4}}
    run = opened(world(tmp_path), {"vllm": ["--dtype", "float32"]}, training=training)
    execute(run, until="generation[dpo,one]")
    assert set(texts(run, "dpo")) == {f"{tmp_path / 'model'} as policy"}


def test_arguments_for_an_adapter():
    served = Served("policy", SOURCE, "folder", adapter_rank=64, gpus=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
        told = " ".join(served.command(80))
    assert told.startswith("/usr/bin/vllm serve base --port 80")
    assert "--tensor-parallel-size 8" in told
    assert "--revision v2 --tokenizer-revision v2" in told
    assert '--default-chat-template-kwargs {"enable_thinking": false}' in told
    assert told.endswith("--enable-lora --lora-modules policy=folder --max-lora-rank 64")


def test_a_server_that_fails_says_why(tmp_path, stand_in):
    run = opened(world(tmp_path), {"vllm": ["--dtype", "int3"]})
    with pytest.raises(
        UserError, match=r"vLLM ended before it was ready\nvLLM ended with code 1:\n.*no such dtype: int3"
    ):
        execute(run, until="generation[initial,one]")


def test_a_server_ends_with_whoever_started_it(tmp_path, stand_in):
    """Killed, so that nothing can be cleaned up."""
    script = (
        "import os, signal\n"
        "from unmdpo.engine.inference.vllm import Served, serving\n"
        "from unmdpo.engine.settings import ModelSource\n"
        "with serving(Served('a', ModelSource(path='base'))) as endpoint:\n"
        "    print(endpoint.endpoint, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -9
    port = int(done.stdout.rpartition(":")[2].partition("/")[0])
    deadline = time.monotonic() + 100
    while answers(port):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def answers(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_without_vllm_it_is_said_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no command `vllm`: install"), serving(Served("a", SOURCE)):
        pass


@pytest.mark.timeout(900)
@pytest.mark.skipif("UNMDPO_TEST_VLLM" not in os.environ, reason="the real vLLM takes a minute to start")
def test_the_real_one_answers_as_we_do(tmp_path):
    folder = world(tmp_path)
    config = LlamaConfig.from_pretrained(folder / "model")
    config.update({"hidden_size": 128, "head_dim": 32, "intermediate_size": 256})  # heads that vLLM has kernels for
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    own = execute(opened(folder, None), until="generation[dpo,one]")
    theirs = execute(opened(folder, {"vllm": ["--dtype", "float32"]}), until="generation[dpo,one]")
    ours, served = (texts(run, "dpo") for run in (own, theirs))
    assert [text.strip() for text in served] == [text.strip() for text in ours]
