# The commands of this project. Each is one that also works without `just`.

# List the recipes
default:
    @just --list

# Train the CNN on MNIST in host memory
train *ARGUMENTS:
    cargo run --release -p arena-train -- {{ARGUMENTS}}

# Run every test
test:
    cargo test --workspace

# Format, lint and build the documentation, with warnings denied
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Run every example
examples:
    for file in examples/[0-9]*.rs; do cargo run -q -p arena-examples --example "$(basename "$file" .rs)"; done

# The ratios of docs/measurements.md: this arena against its peers
ratios:
    cargo bench -p arena-benches --bench ratios

# The criterion benchmarks
bench:
    cargo bench -p arena-benches --bench allocation --bench kept

# Count the instructions of the hot paths under valgrind, against the budgets of benches/instructions.txt
instructions *ARGUMENTS:
    scripts/instructions.sh {{ARGUMENTS}}

# The compiler is a stable one, hence the bootstrap flag. Some tests leak a guard on purpose, so leaks are not
# looked for. A sanitizer reserves more addresses than the limit of one test allows.

# The tests of our crates under AddressSanitizer
san:
    ASAN_OPTIONS=detect_leaks=0 RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address cargo test -p watermark-arena-core -p arena-scope -p arena-plan -p arena-train --lib --tests --target x86_64-unknown-linux-gnu --target-dir target/san -- --skip does_not_compile --skip one_gibibyte

# The planner on public instances, which are not part of this repository: FOLDER/challenging and FOLDER/idealloc
instances FOLDER:
    ARENA_PUBLIC_INSTANCES={{FOLDER}} cargo test -p arena-plan --test suite public_instances -- --include-ignored

# The planner beside omnimalloc's (from PyPI) on the same public instances
planners FOLDER:
    scripts/planners.py {{FOLDER}}/challenging/*.csv {{FOLDER}}/idealloc/*.csv

# The CUDA tests on the stand-in driver, without a GPU; some need NVRTC (the recipe `kernels` installs it)
cuda:
    cargo test -p watermark-arena-core -p arena-scope -p arena-collective -p arena-train -p arena-benches -p arena-examples --features cuda,nccl --test '*' -- cuda nccl

# What a training step of each network needs, as a table (`--torch PYTHON`: PyTorch beside it)
memory *ARGUMENTS:
    scripts/memory_table.py {{ARGUMENTS}}

# Make the pictures of the documentation anew (needs Chromium)
pictures:
    scripts/pictures.sh

# Ranks as processes on MPI (Debian: openmpi-bin libopenmpi-dev libclang-dev)
ranks:
    cargo test -p arena-collective -p arena-train --features mpi --test suite -- mpi

# Two ranks beside one, of this project and of PyTorch (needs the package `torch`)
ranks-speed:
    cargo build --release -p arena-train --features mpi
    scripts/torch_ranks.py

# Compile every CUDA kernel with NVRTC and assemble it with ptxas (both come by pip)
kernels:
    scripts/kernels.sh

# Build here and run what a machine with a GPU can show: tests, training, memcheck, the table of docs/measurements.md
gpu:
    scripts/gpu.sh

# The suite of `gpu` on the stand-ins, in the place of a driver and of cuBLAS
rehearse:
    scripts/gpu.sh rehearse

# Small faults, one at a time, each of which a test must notice (`just mutants arena-core --only 3`)
mutants *ARGUMENTS:
    scripts/mutants.py {{ARGUMENTS}}

# The kernel and training tests on the stand-in as every device with every driver
devices *ARGUMENTS:
    scripts/devices.sh {{ARGUMENTS}}

# cudarc's own unit tests on the stand-in
cudarc:
    scripts/cudarc_tests.sh

# A million steps of a region that grows, gives back and is refused memory
soak:
    cargo test --release -p arena-scope --test suite -- --ignored a_million_steps

# PyTorch's own reader of memory snapshots on what `arena-report --pytorch` writes (needs the package `torch`)
viewer:
    scripts/viewer.py

# Pages of `arena-report` in headless Chromium (Debian's package `chromium`)
pages *EVENTS:
    scripts/pages.py {{EVENTS}}

# What takes too long for CI: every fault, the tests under AddressSanitizer, the public instances, every device and every version of the bindings on the stand-in, cudarc's own tests, PyTorch's viewer and Chromium
full INSTANCES: mutants san (instances INSTANCES) (planners INSTANCES) kernels devices cudarc soak viewer pages ranks ranks-speed
    for version in cuda-12000 cuda-12080 cuda-13000 cuda-13040; do case $version in cuda-13*) driver=13.0;; *) driver=12.9;; esac; CUDA_STANDIN=driver=$driver cargo test -p watermark-arena-core -p arena-scope -p arena-train -p arena-benches -p arena-examples --features $version --test '*' -- cuda || exit 1; done

# All that CI does
ci:
    .ci/run
