//! The ready-made applications: Python modules that `tidemill <name>` runs as a job.

/// One application.
pub struct App {
    /// The subcommand.
    pub name: &'static str,
    /// The Python module that every worker runs.
    pub module: &'static str,
    /// One line for `tidemill --help`.
    pub about: &'static str,
}

/// All applications with their own subcommand. The console script (`tidemill.cli`) runs some of them directly
/// instead of as jobs: those that inspect or change running streams, `hosts`, and `simulate` without `--validate`.
pub const APPS: &[App] = &[
    App { name: "balance", module: "tidemill.apps.balance", about: "Spread the keys of a running stream evenly" },
    App {
        name: "checkpoints",
        module: "tidemill.apps.checkpoints",
        about: "List and check the checkpoints of a stream, or copy one",
    },
    App { name: "drain", module: "tidemill.apps.drain", about: "Move the keys of a running stream away from a host" },
    App { name: "hosts", module: "tidemill.apps.hosts", about: "Make a cluster of emulated hosts on this machine" },
    App { name: "kmeans", module: "tidemill.apps.kmeans", about: "Cluster the rows of a file with k-means" },
    App { name: "nexmark", module: "tidemill.apps.nexmark", about: "Run Nexmark queries over streams" },
    App { name: "scale", module: "tidemill.apps.scale", about: "Give a running stream more or fewer workers" },
    App {
        name: "series",
        module: "tidemill.apps.series",
        about: "Show time series, such as a stock market, as moving points",
    },
    App {
        name: "simulate",
        module: "tidemill.apps.simulate",
        about: "Predict what a program takes on a cluster that you do not have",
    },
    App { name: "stop", module: "tidemill.apps.stop", about: "Make a stream take a last checkpoint and end" },
    App { name: "teragen", module: "tidemill.apps.teragen", about: "Generate 100-byte records for terasort" },
    App {
        name: "terasort",
        module: "tidemill.apps.terasort",
        about: "Sort 100-byte records, even more than fit in memory",
    },
    App {
        name: "teravalidate",
        module: "tidemill.apps.teravalidate",
        about: "Check that records are in order and none is lost",
    },
    App { name: "top", module: "tidemill.apps.top", about: "Show streams of this machine, and why they are slow" },
    App { name: "tpch", module: "tidemill.apps.tpch", about: "Run TPC-H queries" },
    App {
        name: "tune",
        module: "tidemill.apps.tune",
        about: "Measure the collectives and save the fastest algorithms",
    },
    App { name: "view", module: "tidemill.apps.view", about: "Show moving points in the browser" },
    App { name: "why", module: "tidemill.apps.why", about: "List what the controller of a stream has decided" },
];

/// What `tidemill info --job` runs.
pub const JOB_INFO: &App = &App {
    name: "info --job",
    module: "tidemill.apps.job_info",
    about: "Measure latency and bandwidth between the workers of a job",
};
