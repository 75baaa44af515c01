"""How fast are pre-training records made, and in how much memory, beside the original's code?

    python -m benchmarks.pretraining_data --corpus english.txt --vocab uncased_vocab.txt \\
        --sizes 3,30 --original peers

The text is the corpus over and over, each time with other words in the place of some, up to so
many MB. Every run is a command of its own, as a user gives it; wall time includes the start of
Python and all imports, "without start" leaves out what the same command takes for a text of two
sentences. Memory is the sum over the command's processes of the memory that is theirs alone
(proportional set size, sampled), so Linux is needed. MB/s counts the text once, whatever the
number of duplicates.

--original names a folder with the original's code:
  pip install --no-deps --target peers bert-tensorflow
It is run with this Python's TensorFlow. --beam names the Python of an environment with Beam.
"""

import argparse
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).parents[1]


def grow(corpus: pathlib.Path, target: pathlib.Path, size: int) -> None:
    """Writes a text of about `size` bytes: the corpus repeated, with every 12th word another."""
    lines = corpus.read_text("utf-8").split("\n")
    words = sorted({word for line in lines for word in line.split()})
    rng = random.Random(0)
    written = copies = 0
    with target.open("w", encoding="utf-8") as file:
        while written < size:
            for line in lines:
                if copies and line.strip():
                    parts = line.split()
                    for i in range(rng.randrange(12), len(parts), 12):
                        parts[i] = rng.choice(words)
                    line = " ".join(parts)
                written += file.write(line + "\n")
                if written >= size and not line.strip():
                    break
            file.write("\n")
            copies += 1


def family(pid: int) -> list[int]:
    """Returns a process and all that came from it."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found = [pid]
    for process in found:
        found += parents.get(process, [])
    return found


def memory(pid: int) -> int:
    """Returns the bytes that a process and its children hold."""
    total = 0
    for process in family(pid):
        try:
            text = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in text.split("\n") if line.startswith("Pss:"))
    return total * 1024


def run(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Returns the seconds and the peak of the memory in MB."""
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, memory(process.pid))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.stderr is not None
    log = process.stderr.read()
    process.wait()
    seconds = time.monotonic() - start
    watcher.join()
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{log.decode()[-2000:]}")
    return seconds, peak / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--corpus", required=True, type=pathlib.Path)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--sizes", default="3,30", help="MB of text, comma-separated")
    parser.add_argument("--dupe_factor", default=5, type=int)
    parser.add_argument("--max_seq_length", default=128, type=int)
    parser.add_argument("--original", help="folder with the original's code")
    parser.add_argument("--original_up_to", default=30, type=int, help="MB; it takes long")
    parser.add_argument("--exact_up_to", default=200, type=int, help="MB")
    parser.add_argument("--beam", help="Python of an environment with apache-beam")
    parser.add_argument("--work_dir", help="folder for texts and records")
    options = parser.parse_args()

    ours = [sys.executable, "create_pretraining_data.py"]
    ways: dict[str, tuple[list[str], dict[str, str], int]] = {}
    if options.original:
        module = [sys.executable, "-m", "bert.create_pretraining_data"]
        path = {"PYTHONPATH": os.path.abspath(options.original), "TF_CPP_MIN_LOG_LEVEL": "2"}
        ways["original"] = module, path, options.original_up_to
    ways["exact"] = ours, {}, options.exact_up_to
    ways["streaming, 1 worker"] = [*ours, "--mode=streaming"], {}, 1 << 30
    ways["streaming, 2 workers"] = [*ours, "--num_workers=2"], {}, 1 << 30
    if options.beam:
        ways["Beam, 2 processes"] = (
            [options.beam, ours[1], "--runner=DirectRunner",
             "--beam_options=--direct_num_workers=2 --direct_running_mode=multi_processing"],
            {}, 1 << 30,
        )  # fmt: skip

    folder = pathlib.Path(tempfile.mkdtemp(dir=options.work_dir))
    try:
        starts = {}
        tiny = folder / "tiny.txt"
        tiny.write_text("one two\nthree four\n\nfive six\nseven eight\n")
        print(
            f"{'MB':>5} {'':22} {'seconds':>8} {'without start':>14} {'MB/s':>6} {'MB memory':>10}"
        )
        for size in map(int, options.sizes.split(",")):
            text = folder / f"{size}.txt"
            grow(options.corpus, text, size * 1_000_000)
            megabytes = text.stat().st_size / 1e6
            for name, (command, environment, up_to) in ways.items():
                if size > up_to:
                    continue

                def arguments(source: pathlib.Path, command: list[str] = command) -> list[str]:
                    pattern = "x@1" if "--runner=DirectRunner" in command else "x"
                    return [
                        *command,
                        f"--input_file={source}",
                        f"--output_file={folder / 'records' / pattern}",
                        f"--vocab_file={options.vocab}",
                        f"--dupe_factor={options.dupe_factor}",
                        f"--max_seq_length={options.max_seq_length}",
                    ]

                (folder / "records").mkdir(exist_ok=True)
                if name not in starts:
                    starts[name] = min(run(arguments(tiny), environment)[0] for _ in range(2))
                seconds, peak = run(arguments(text), environment)
                shutil.rmtree(folder / "records")
                net = seconds - starts[name]
                print(
                    f"{size:5} {name:22} {seconds:8.1f} {net:14.1f} {megabytes / net:6.2f} "
                    f"{peak:10.0f}",
                    flush=True,
                )
            text.unlink()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
