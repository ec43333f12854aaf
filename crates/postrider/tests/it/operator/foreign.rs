//! A consumer that is none of ours: pika, with the loop that its documentation shows.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use super::traffic::Ids;

const SCRIPT: &str = r#"
import random, sys, time, pika
urls = sys.argv[1:]
def on_message(channel, method, properties, body):
    print(properties.message_id, flush=True)
    channel.basic_ack(method.delivery_tag)
while True:
    try:
        connection = pika.BlockingConnection(pika.URLParameters(random.choice(urls)))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)
        channel.basic_consume("orders", on_message)
        # Returns when RabbitMQ cancels the consumer, because its queue was deleted.
        channel.start_consuming()
        connection.close()
    except (pika.exceptions.AMQPError, OSError):
        pass
    time.sleep(0.5)
"#;

/// A running pika consumer of `orders`. Killed when the test ends.
pub(super) struct Pika {
    pub(super) seen: Ids,
    child: Child,
}

impl Pika {
    pub(super) fn start(urls: &[String]) -> Self {
        let mut command = Command::new(interpreter());
        let mut child = command.arg("-c").arg(SCRIPT).args(urls).stdout(Stdio::piped()).spawn().unwrap();
        let (seen, out) = (Ids::default(), child.stdout.take().unwrap());
        let noted = Arc::clone(&seen);
        std::thread::spawn(move || {
            for id in BufReader::new(out).lines().map_while(Result::ok) {
                noted.lock().unwrap().insert(id);
            }
        });
        Self { seen, child }
    }

    pub(super) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

impl Drop for Pika {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _code = self.child.wait();
    }
}

/// The first Python that has pika: the one on the PATH, or the system's, for which Debian packages it.
fn interpreter() -> &'static str {
    let has_pika = |python: &&str| {
        let tried = Command::new(python).args(["-c", "import pika"]).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    };
    let found = ["python3", "/usr/bin/python3"].into_iter().find(has_pika);
    found.expect("pika, the Python client of RabbitMQ: run scripts/install-servers (package python3-pika)")
}
