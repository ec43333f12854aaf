//! The dashboard in a real browser, on the embedded default and on real servers; and its doors, without one.

mod correcting;
mod doors;
mod hands;
mod markup;
mod migrating;
mod outage;
mod pictures;
mod ways;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider_testkit::receiver::{Receiver, Reply};

use super::process::{Folder, Serving};

/// A mail service that knows no recipient until it is mended.
struct Shop {
    /// What customers write, and the mail service repeats.
    note: &'static str,
    mended: Arc<AtomicBool>,
    receiver: Receiver,
    serving: Serving,
}

/// What a page must never take for markup.
const NASTY: &str = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">";

impl Shop {
    /// Serves a shop whose mails cannot be sent.
    async fn open(folder: &Folder) -> Self {
        Self::open_with(folder, "").await
    }

    /// The same with more in the configuration.
    async fn open_with(folder: &Folder, more: &str) -> Self {
        Self::open_for(folder, more, NASTY).await
    }

    /// The same with customers who write this.
    async fn open_for(folder: &Folder, more: &str, note: &'static str) -> Self {
        let mended = Arc::new(AtomicBool::new(false));
        let knows = mended.clone();
        let receiver = Receiver::start(move |request, _| {
            let order = request.header("x-aggregate-id").to_owned();
            if knows.load(Ordering::SeqCst) {
                return Reply::status(200);
            }
            Reply::Status(422, "", format!("no such recipient for {order}: {note}"))
        })
        .await;
        let url = receiver.url();
        folder.write(
            "postrider.toml",
            &format!(
                "[egress]\nallow = ['127.0.0.1', 'http']\n\
                 [[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n[[consumer]]\nname = 'billing'\n\
                 [[push]]\nname = 'email'\nkeys = ['shop.order.*']\nurl = '{url}'\n{more}"
            ),
        );
        let mut serving = folder.serve(&[]);
        serving.wait_for("dashboard at");
        Self { note, mended, receiver, serving }
    }

    fn place_orders(&self, count: u32) {
        for number in 1..=count {
            let event = serde_json::json!({
                "type": "shop.order.placed", "id": format!("evt_{number}"), "aggregate_id": format!("order-{number}"),
                "tenant": "acme", "data": { "to": "ada@example.com", "note": self.note },
            });
            assert_eq!(self.serving.post_event(&[], &event.to_string()).0, 202);
        }
    }

    /// Waits until so many attempts at mails are written down.
    async fn until_tried(&self, count: usize) {
        for _ in 0..600 {
            let (_, _, body) = self.serving.http("GET", "/v1/subscriptions/email/attempts", &[], "");
            let tried: serde_json::Value = serde_json::from_str(&body).unwrap();
            if tried["attempts"].as_array().is_some_and(|attempts| attempts.len() >= count) {
                return;
            }
            tokio::time::timeout(Duration::from_millis(100), std::future::pending::<()>()).await.unwrap_err();
        }
        panic!("{count} mails were not tried");
    }

    fn mend(&self) {
        self.mended.store(true, Ordering::SeqCst);
    }

    fn page(&self, path: &str) -> String {
        format!("http://{}/dashboard{path}", self.serving.address)
    }

    /// Mails that were sent at last.
    fn sent(&self) -> usize {
        self.receiver.requests().len()
    }
}
