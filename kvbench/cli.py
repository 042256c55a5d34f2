"""The command line: parse, call, print. What a command does lives in the modules it calls.

Nothing heavy is imported before a command needs it, so that help and lists answer at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from kvbench import __version__, seeds
from kvbench.errors import KvbenchError, unknown

app = typer.Typer(
    name="kvbench",
    help="The benchmark and leaderboard for KV-cache eviction policies.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
data_app = typer.Typer(help="Look at a task's samples; fetch what they are made of.", no_args_is_help=True)
app.add_typer(data_app, name="data")
out = Console()
err = Console(stderr=True)
_INTERRUPTED = 130

ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="A hub id, a local folder, a .gguf file, or smollm2-135m.")
]
DataOption = Annotated[
    list[str] | None,
    typer.Option("--data", metavar="NAME=PATH", help="A local copy of a task's data: essays=PATH. Repeatable."),
]
DtypeOption = Annotated[str | None, typer.Option(help="bfloat16 where the processor has it, else float32.")]
DeviceOption = Annotated[str | None, typer.Option(help="The accelerator if there is one, else cpu.")]
AttentionOption = Annotated[str, typer.Option(help="The prefill's kernel: sdpa, eager, flash_attention_2, …")]
EngineOption = Annotated[str, typer.Option(help="local: this process; ray or ray://HOST:PORT: a Ray cluster.")]
GpusOption = Annotated[
    float | None, typer.Option(min=0, help="Of each Ray worker; 1, and 0 where --device is cpu, by default.")
]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Ray workers; as many as there is room for.")]
RevisionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--revision",
        metavar="NAME=REVISION",
        help="Commit, branch or tag of a dataset on the hub: boolq=main. Repeatable.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OfTasksOption = Annotated[
    list[str] | None, typer.Option("--task", "-t", help="Only these tasks, comma-separated, in this order.")
]
ResultsArgument = Annotated[Path, typer.Argument(help="A results folder.")]


def main() -> NoReturn:
    """Run the command line; every error is one sentence, exit code 2 for a wrong command and 1 for a failed run."""
    try:
        code = app(standalone_mode=False)
    except KvbenchError as error:
        err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):  # not one of typer's own complaints about the command
            raise
        if message := error.format_message():  # none where the help has been shown instead
            err.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
        sys.exit(2)
    if code == _INTERRUPTED:  # typer's own code for an interrupt, too
        err.print("stopped; what is finished is on disk, and the same command goes on from there", soft_wrap=True)
    sys.exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"kvbench {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    press: Annotated[
        list[str],
        typer.Option("--press", "-p", help="Presses, comma-separated, or all: kvp,snapkv:window=32."),
    ],
    task: Annotated[list[str], typer.Option("--task", "-t", help="Tasks, comma-separated: ruler-4k,ruler-8k:vt.")],
    budgets: Annotated[
        str,
        typer.Option("--budgets", "-b", help="Tokens per KV head or shares of the context: 256,1024,25%."),
    ],
    model: ModelOption = "smollm2-135m",
    data: DataOption = None,
    revision: RevisionOption = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Samples per subtask; all by default.")] = None,
    results: Annotated[Path, typer.Option("--results", "-o", help="Results folder; a run resumes it.")] = Path(
        "results"
    ),
    question: Annotated[
        str | None, typer.Option(help="inside: compressed with the context; after: fed after compression.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="after-prefill: compress once; chunked: after every chunk. The task's choice.")
    ] = None,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens per chunk of the chunked schedule.")] = 2048,
    protect: Annotated[str, typer.Option(help="First and last tokens that no press may evict first.")] = "4,16",
    seed: Annotated[int, typer.Option(min=0, help="Of generated data and seeded presses.")] = seeds.BENCHMARK,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    attention: AttentionOption = "sdpa",
    engine: EngineOption = "local",
    gpus_per_worker: GpusOption = None,
    workers: WorkersOption = None,
    noise_floor: Annotated[
        bool, typer.Option("--noise-floor", help="Answer the full cache twice: what rounding alone changes.")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model. Recorded.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Answer tasks under presses and budgets, and record every cell. Computes only what is missing."""
    from kvbench.commands.run import Request, run_command

    request = Request(
        presses=press,
        tasks=task,
        data=data or [],
        revisions=revision or [],
        budgets=budgets,
        model=model,
        limit=limit,
        results=results,
        question=question,
        schedule=schedule,
        chunk=chunk,
        protect=protect,
        seed=seed,
        dtype=dtype,
        device=device,
        attention=attention,
        engine=engine,
        gpus_per_worker=gpus_per_worker,
        workers=workers,
        noise_floor=noise_floor,
        trust_remote_code=trust_remote_code,
    )
    run_command(request, dry_run, as_json, out, err)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(metavar="presses|tasks|models", help="What to list.")],
    as_json: JsonOption = False,
) -> None:
    """List the presses, tasks or models that there are, and the package each comes from."""
    from kvbench.commands.listing import list_command

    if what not in ("presses", "tasks", "models"):
        raise unknown("list", what, ["presses", "tasks", "models"])
    list_command(what, as_json, out)


@app.command()
def info(
    name: Annotated[str, typer.Argument(help="A press or a task.")],
    as_json: JsonOption = False,
) -> None:
    """Say what a press or a task is: parameters, defaults, paper, what it reads."""
    from kvbench.commands.info import info_command

    info_command(name, as_json, out)


@app.command()
def table(
    results: ResultsArgument,
    task: OfTasksOption = None,
    metric: Annotated[
        str, typer.Option(help="score: by budget, one table per protocol; auc: by task, one table of all protocols.")
    ] = "score",
    subtasks: Annotated[bool, typer.Option("--subtasks", help="Each subtask, too.")] = False,
    format_: Annotated[str, typer.Option("--format", help="rich, md, csv, json or latex.")] = "rich",
) -> None:
    """Print scores by press and budget, or areas by press and task, with 95 % intervals and ties."""
    from kvbench.commands.table import table_command

    table_command(results, task or [], metric, subtasks, format_, out)


@app.command()
def compare(
    results: ResultsArgument,
    first: Annotated[str, typer.Argument(help="A press, as tables name it.")],
    second: Annotated[str | None, typer.Argument(help="The press to compare it with; all others by default.")] = None,
    task: OfTasksOption = None,
    format_: Annotated[str, typer.Option("--format", help="rich, md, latex or json.")] = "rich",
) -> None:
    """Compare presses sample by sample: differences with intervals and p-values, wins and losses."""
    from kvbench.commands.compare import compare_command

    compare_command(results, first, second, task or [], format_, out)


@app.command()
def plot(
    results: ResultsArgument,
    to: Annotated[Path | None, typer.Option("--out", help="Folder of the figures; RESULTS/figures by default.")] = None,
    format_: Annotated[str, typer.Option("--format", help="png, svg, pdf; several comma-separated.")] = "png",
) -> None:
    """Draw scores over cache size and measured bytes, areas and ranking times, and what `kvbench cost` measured."""
    from kvbench.commands.plot import plot_command

    plot_command(results, to or results / "figures", format_, out)


@app.command()
def leaderboard(
    results: ResultsArgument = Path("results"),
    to: Annotated[Path, typer.Option("--out", help="Folder of the page.")] = Path("site"),
    serve: Annotated[bool, typer.Option("--serve", help="Serve it to this machine and open it.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --serve; 0 takes any that is free.")] = 0,
) -> None:
    """Write the results as one HTML page of sortable tables and curves that needs no network."""
    from kvbench.commands.leaderboard import leaderboard_command

    leaderboard_command(results, to, serve, port, out)


@app.command()
def validate(
    results: ResultsArgument,
    as_json: JsonOption = False,
) -> None:
    """Check a results folder line by line, without the model: schema, budgets, measurements, scores."""
    from kvbench.commands.validate import validate_command

    validate_command(results, as_json, out)


@app.command()
def merge(
    sources: Annotated[list[Path], typer.Argument(help="Results folders; they are only read.")],
    into: Annotated[Path, typer.Option("--into", help="The results folder that gets their cells.")],
    compress: Annotated[
        bool,
        typer.Option(
            "--compress",
            help="Leave all records of that folder gzip-compressed; without it, files that gain cells are plain.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Add the cells of some results folders to another, each once."""
    from kvbench.commands.merge import merge_command

    merge_command(sources, into, compress, as_json, out)


@app.command()
def check(
    press: Annotated[str, typer.Argument(help="A press, with parameters if wanted.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Use this model's shape; learned presses need it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a press against the contract of sort(), and time it."""
    from kvbench.commands.check import check_command

    check_command(press, model, as_json, out)


@app.command()
def new(
    kind: Annotated[str, typer.Argument(metavar="press|task", help="What to write.")],
    name: Annotated[str, typer.Argument(help="What it will be called.")],
    into: Annotated[Path, typer.Option("--into", help="The folder that gets the package's folder.")] = Path(),
) -> None:
    """Write a package with a new press or task, ready to be installed and checked."""
    from kvbench.commands.new import KINDS, new_command

    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    new_command(kind, name, into, out)


@app.command()
def train(
    traces: Annotated[list[Path], typer.Option("--traces", help="A folder of `kvbench traces`. Repeatable.")],
    to: Annotated[Path, typer.Option("--out", "-o", help="The safetensors file of the agents; resumed if stopped.")],
    objective: Annotated[
        str, typer.Option(help="exact, rloo, pointwise, ranknet, listnet, softsort or weighted-softsort.")
    ] = "exact",
    agent: Annotated[str, typer.Option(help="paper: 256 wide, 6,000 positions; small: what kvbench embeds.")] = "small",
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps; by default the agent's own.")] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate; by default the agent's own.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences per step; by default the agent's own.")] = None,
    tokens: Annotated[
        int | None, typer.Option(min=4, help="Tokens drawn from each sequence; by default the agent's own.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="End after so many minutes; the learning rate falls in that time.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights, the draws and the split.")] = 0,
    device: Annotated[str | None, typer.Option(help="The accelerator if there is one, else cpu.")] = None,
    half: Annotated[bool, typer.Option("--half", help="Store the weights in float16.")] = False,
) -> None:
    """Train KVP's agents on traces; under torchrun, in several processes together."""
    from kvbench.commands.train import TrainRequest, train_command

    request = TrainRequest(
        traces=traces,
        to=to,
        objective=objective,
        agent=agent,
        steps=steps,
        lr=lr,
        batch=batch,
        tokens=tokens,
        minutes=minutes,
        seed=seed,
        device=device,
        half=half,
    )
    train_command(request, out, err)


@app.command()
def traces(
    task: Annotated[list[str], typer.Option("--task", "-t", help="Tasks, comma-separated: ruler-4k:vt,oasst2:train.")],
    to: Annotated[Path, typer.Option("--out", "-o", help="Folder of the traces; a run resumes it.")],
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Per task, spread over its subtasks.")],
    model: ModelOption = "smollm2-135m",
    data: DataOption = None,
    cuts: Annotated[int, typer.Option(min=1, help="Cuts per sequence: its end, and others drawn before it.")] = 3,
    rollout: Annotated[int, typer.Option(min=1, help="Most tokens that are generated as the future.")] = 300,
    seed: Annotated[
        int, typer.Option(min=0, help="Of generated data and cuts; the benchmark's is another.")
    ] = seeds.TRACES,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    attention: AttentionOption = "sdpa",
    engine: EngineOption = "local",
    gpus_per_worker: GpusOption = None,
    workers: WorkersOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what it would take, and do nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Store what a model caches, and the future attention its tokens get, for KVP to learn from."""
    from kvbench.commands.traces import TracesRequest, traces_command

    request = TracesRequest(
        tasks=task,
        to=to,
        samples=samples,
        model=model,
        data=data or [],
        cuts=cuts,
        rollout=rollout,
        seed=seed,
        dtype=dtype,
        device=device,
        attention=attention,
        engine=engine,
        gpus_per_worker=gpus_per_worker,
        workers=workers,
    )
    traces_command(request, dry_run, as_json, out, err)


@app.command()
def cost(
    press: Annotated[
        list[str],
        typer.Option("--press", "-p", help="Presses, comma-separated, or all; oracle and random are added."),
    ],
    task: Annotated[
        list[str] | None, typer.Option("--task", "-t", help="Tasks, comma-separated: ruler-4k:vt,oasst2.")
    ] = None,
    from_traces: Annotated[
        Path | None,
        typer.Option(
            "--traces", help="Rank stored traces instead of running the model; not with presses that read queries."
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", "-n", min=1, help="Per task; by default 13, or all the traces.")
    ] = None,
    model: ModelOption = "smollm2-135m",
    data: DataOption = None,
    budgets: Annotated[
        str, typer.Option("--budgets", "-b", help="Points of the curves: tokens per KV head or shares of the context.")
    ] = "16,32,64,128,256,512,1024,2048",
    protect: Annotated[str, typer.Option(help="First and last tokens put in front of every ranking.")] = "0,0",
    rollout: Annotated[int, typer.Option(min=1, help="Most tokens that are generated as the future.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Of generated data and seeded presses.")] = seeds.BENCHMARK,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    attention: AttentionOption = "sdpa",
    to: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the reports; presses are added to what is there.")
    ] = Path("results/cost"),
    as_json: JsonOption = False,
) -> None:
    """Measure presses by the future attention they evict, per head and budget, without answering anything."""
    from kvbench.commands.cost import CostRequest, cost_command

    request = CostRequest(
        presses=press,
        tasks=task or [],
        traces=from_traces,
        samples=samples,
        data=data or [],
        model=model,
        budgets=budgets,
        protect=protect,
        rollout=rollout,
        seed=seed,
        dtype=dtype,
        device=device,
        attention=attention,
        to=to,
    )
    cost_command(request, as_json, out, err)


@app.command()
def show(
    press: Annotated[
        list[str], typer.Option("--press", "-p", help="Presses, comma-separated: kvp,oracle,streaming_llm.")
    ],
    text: Annotated[Path, typer.Option("--text", help="A file with the text, given to the model as it is.")],
    model: ModelOption = "smollm2-135m",
    layer: Annotated[int | None, typer.Option(min=0, help="Only this layer; the mean over all by default.")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Only this KV head of the layer.")] = None,
    protect: Annotated[str, typer.Option(help="First and last tokens put in front of every ranking.")] = "0,0",
    future: Annotated[
        int, typer.Option(min=1, help="Most tokens of the model's continuation, which the oracle ranks by.")
    ] = 64,
    png: Annotated[Path | None, typer.Option("--png", help="Also draw a picture, a .png file.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page, an .html file.")] = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    attention: AttentionOption = "sdpa",
) -> None:
    """Show a text's tokens shaded by how long each press keeps them, side by side."""
    from kvbench.commands.show import ShowRanksRequest, show_ranks_command

    request = ShowRanksRequest(
        presses=press,
        text=text,
        model=model,
        layer=layer,
        head=head,
        protect=protect,
        future=future,
        png=png,
        html=html,
        dtype=dtype,
        device=device,
        attention=attention,
    )
    show_ranks_command(request, out, err)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Look at this machine: versions, processor, memory, model, caches."""
    from kvbench.commands.doctor import doctor_command

    doctor_command(as_json, out)


@data_app.command("show")
def data_show(
    task: Annotated[str, typer.Argument(help="A task, with a subset if wanted: ruler-4k:vt.")],
    model: ModelOption = "smollm2-135m",
    data: DataOption = None,
    revision: RevisionOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Samples per subtask.")] = 1,
    question: Annotated[
        str | None, typer.Option(help="inside: compressed with the context; after: fed after compression.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of generated data.")] = seeds.BENCHMARK,
    full: Annotated[bool, typer.Option("--full", help="Print long contexts whole.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print samples exactly as the model gets them, with their targets and token counts."""
    from kvbench.commands.data import ShowRequest, show_command

    request = ShowRequest(
        task=task,
        model=model,
        data=data or [],
        revisions=revision or [],
        limit=limit,
        question=question,
        seed=seed,
    )
    show_command(request, full, as_json, out, err)


@data_app.command("fetch")
def data_fetch(
    task: Annotated[list[str], typer.Argument(help="Tasks, with subsets if wanted: boolq longbench:qasper+trec.")],
    data: DataOption = None,
    revision: RevisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch all that tasks need from the hub into its cache, for a machine without network."""
    from kvbench.commands.data import fetch_command

    fetch_command(task, data or [], revision or [], as_json, out, err)
