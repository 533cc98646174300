import os

# Nearly every test compiles a program and runs it for milliseconds: most of their time would go into optimising it.
# `make slow`, where programs run for minutes, sets the variable to nothing.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

import jax

jax.config.update("jax_enable_x64", True)
