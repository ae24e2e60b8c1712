import json, pytest
from pathlib import Path
from course_lib.gpt import Config
from course_lib.deepspeed_config import walk
from course_lib.estimate import ladder
from tests.estimate.test_ladder import peaks
from course_lib.pretrained.config import to_transformers

MODELS = {
    "gpt2": Config.gpt2(vocabulary=600, length=64, hidden=96, layers=4, heads=4),
    "llama": Config.llama(
        vocabulary=400, length=64, hidden=96, layers=6, heads=4, kv_heads=2, inner=256
    ),
    "wide": Config.llama(vocabulary=300, length=32, hidden=192, layers=3, heads=4, inner=512),
    "words": Config.gpt2(vocabulary=4001, length=32, hidden=64, layers=2, heads=4),
}


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", list(MODELS))
def test_measure(pool, tmp_path, name, world, precision):
    (tmp_path / "config.json").write_text(
        json.dumps(to_transformers(MODELS[name], __import__("torch").float32))
    )
    task = walk.Task.read(
        tmp_path, "1", None, gpus=world, nodes=1, rows=4, length=0, precision=precision
    )
    done = walk.walk(task)
    runs = [walk.train(task, r.setting) for r in done.rungs]
    got = pool.run(world, peaks, runs, str(tmp_path), timeout=280)[0]
    with open("/tmp/b/measured.txt", "a") as f:
        for r, g in zip(done.rungs, got):
            f.write(
                f"{name:6} {world} {precision:9} {r.name[:40]:40} est {r.needs.gpu:9} got {g:9} ratio {r.needs.gpu / g:.3f}\n"
            )
