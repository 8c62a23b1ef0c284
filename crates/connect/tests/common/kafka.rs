//! A single-node Kafka for tests, like `tests/python/support/local_servers/kafka.py`: on permanent loopback ports, with
//! its data in a folder.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::server::{PATIENCE, Process, free_port, repository, runs};

const CLUSTER_ID: &str = "dGlkZW1pbGwtdGVzdHMtMQ";

pub struct Kafka {
    folder: tempfile::TempDir,
    ports: [u16; 2],
    jars: PathBuf,
    process: Mutex<Option<Process>>,
}

/// A record in a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
}

fn jars() -> Option<PathBuf> {
    let pom = fs::read_to_string(repository().join("tools/kafka/pom.xml")).ok()?;
    let version = pom.split_once("<kafka.version>")?.1.split_once('<')?.0;
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty()).map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let jars = cache.join(format!("tidemill/kafka-{version}"));
    jars.join("stamp").exists().then_some(jars)
}

impl Kafka {
    /// Starts one and waits until it answers; `None`, with a message, if it is not installed.
    pub fn start() -> Option<Self> {
        let missing = match (jars(), runs("java", "-version"), runs("python3", "--version")) {
            (None, _, _) => "no Kafka to test with",
            (_, false, _) => "no Java to run Kafka with",
            (_, _, false) => "no Python to guard Kafka with",
            (Some(jars), true, true) => {
                for _ in 0..5 {
                    let folder = tempfile::tempdir().unwrap();
                    let ports = [free_port(), free_port()];
                    let kafka = Kafka { folder, ports, jars: jars.clone(), process: Mutex::default() };
                    kafka.configure();
                    if kafka.up() {
                        return Some(kafka);
                    }
                }
                panic!("no Kafka found free ports");
            }
        };
        println!("{missing}; make setup-servers installs it: the test is skipped");
        None
    }

    pub fn servers(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    fn java(&self) -> Vec<String> {
        let options =
            ["-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"];
        let jars = format!("{}/*", self.jars.display());
        let words = ["java"].into_iter().chain(options).chain(["-cp", jars.as_str()]);
        words.map(str::to_owned).collect()
    }

    fn properties(&self) -> PathBuf {
        self.folder.path().join("server.properties")
    }

    fn configure(&self) {
        let [port, controller] = self.ports;
        let data = self.folder.path().join("data");
        let text = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n\
             controller.listener.names=CONTROLLER\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\nlog.dirs={}\n\
             auto.create.topics.enable=false\noffsets.topic.replication.factor=1\noffsets.topic.num.partitions=4\n\
             transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n\
             transaction.state.log.num.partitions=4\nshare.coordinator.state.topic.replication.factor=1\n\
             share.coordinator.state.topic.min.isr=1\ngroup.initial.rebalance.delay.ms=0\n\
             broker.session.timeout.ms=3000\nbroker.heartbeat.interval.ms=500\n",
            data.display()
        );
        fs::write(self.properties(), text).unwrap();
        let words = self.java();
        let made = Command::new(&words[0])
            .args(&words[1..])
            .args(["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config"])
            .arg(self.properties())
            .output()
            .unwrap();
        assert!(made.status.success(), "Kafka's storage could not be made: {}", String::from_utf8_lossy(&made.stderr));
    }

    /// Starts it with its ports and data. False: a port is taken.
    fn up(&self) -> bool {
        let mut command = self.java();
        command.extend(["kafka.Kafka".to_owned(), self.properties().display().to_string()]);
        let started = Process::start(&command, self.folder.path(), || self.answers());
        let is_up = started.is_some();
        *self.process.lock().unwrap() = started;
        is_up
    }

    fn down(&self) {
        drop(self.process.lock().unwrap().take());
    }

    /// Kills and restarts it; acknowledged records survive.
    pub fn restart(&self) {
        self.down();
        assert!(self.up(), "somebody took the port of Kafka");
    }

    fn answers(&self) -> bool {
        if TcpStream::connect(("127.0.0.1", self.ports[0])).is_err() {
            return false;
        }
        let client: BaseProducer = self.config().set("log_level", "0").create().unwrap();
        let metadata = client.client().fetch_metadata(None, Duration::from_secs(1));
        metadata.is_ok_and(|metadata| metadata.brokers().len() == 1)
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.servers()).set("reconnect.backoff.max.ms", "200");
        config
    }

    fn admin<T>(&self, ask: impl AsyncFnOnce(AdminClient<DefaultClientContext>, AdminOptions) -> T) -> T {
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE)).request_timeout(Some(PATIENCE));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(ask(self.config().create().unwrap(), options))
    }

    pub fn create_topic(&self, topic: &str, partitions: i32) {
        let made = self.admin(async |admin, options| {
            admin.create_topics(&[NewTopic::new(topic, partitions, TopicReplication::Fixed(1))], &options).await
        });
        made.unwrap().remove(0).unwrap();
    }

    pub fn add_partitions(&self, topic: &str, total: usize) {
        let made = self
            .admin(async |admin, options| admin.create_partitions(&[NewPartitions::new(topic, total)], &options).await);
        made.unwrap().remove(0).unwrap();
    }

    /// Writes records, each to a partition, and waits for acknowledgments.
    pub fn produce(&self, topic: &str, records: impl IntoIterator<Item = (i32, Option<Vec<u8>>)>) {
        let producer: BaseProducer = self.config().create().unwrap();
        for (partition, value) in records {
            let mut record = BaseRecord::<[u8], Vec<u8>>::to(topic).partition(partition);
            if let Some(value) = &value {
                record = record.payload(value);
            }
            producer.send(record).map_err(|(error, _)| error).unwrap();
            producer.poll(Duration::ZERO);
        }
        producer.flush(PATIENCE).unwrap();
    }

    /// The current contents of a topic, committed transactions only. A commit is acknowledged once it is decided, but
    /// visible only after the brokers have told each partition: this waits for that.
    pub fn read(&self, topic: &str) -> Vec<Found> {
        let mut config = self.config();
        config.set("group.id", "tests").set("enable.partition.eof", "true").set("isolation.level", "read_committed");
        let consumer: BaseConsumer = config.create().unwrap();
        let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).unwrap();
        let mut unread: BTreeSet<i32> = metadata.topics()[0].partitions().iter().map(|found| found.id()).collect();
        let mut all = TopicPartitionList::new();
        let begun = Instant::now();
        for partition in &unread {
            while self.has_undecided(&consumer, topic, *partition) {
                assert!(begun.elapsed() < PATIENCE, "a transaction of partition {partition} stays open");
                std::thread::sleep(Duration::from_millis(10));
            }
            all.add_partition_offset(topic, *partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&all).unwrap();
        let mut found = Vec::new();
        while !unread.is_empty() {
            assert!(begun.elapsed() < PATIENCE, "Kafka does not answer");
            match consumer.poll(Duration::from_secs(1)) {
                None => {}
                Some(Ok(message)) => found.push(Found {
                    partition: message.partition(),
                    offset: message.offset(),
                    key: message.key().map(<[u8]>::to_vec),
                    value: message.payload().map(<[u8]>::to_vec),
                }),
                Some(Err(KafkaError::PartitionEOF(partition))) => drop(unread.remove(&partition)),
                Some(Err(error)) => println!("{error}"),
            }
        }
        found.sort_by_key(|record| (record.partition, record.offset));
        found
    }

    /// Whether a partition has more than readers of committed records see.
    fn has_undecided(&self, committed: &BaseConsumer, topic: &str, partition: i32) -> bool {
        let all: BaseConsumer = self.config().set("isolation.level", "read_uncommitted").create().unwrap();
        let end = |consumer: &BaseConsumer| consumer.fetch_watermarks(topic, partition, PATIENCE).map(|(_, end)| end);
        // A broker that has just restarted does not lead any partition yet.
        !matches!((end(committed), end(&all)), (Ok(seen), Ok(end)) if seen >= end)
    }
}
