//! Words about leases of other processes, on PostgreSQL.

use super::Postgres;
use crate::pull::{LeaseKey, PullWord};
use crate::store::{PullWords, StoreError, StoreErrorKind, WordNumber};

const LEAVE: &str = "WITH forgotten AS (DELETE FROM postrider.pull_word WHERE said_at < now() - interval '1 hour') \
     INSERT INTO postrider.pull_word (desk, lease, said) SELECT * FROM UNNEST($1::text[], $2::text[], $3::text[]) RETURNING no";

const UNANSWERED: &str = "SELECT no, desk, lease, said FROM postrider.pull_word \
     WHERE desk = ANY($1) AND taken IS NULL ORDER BY no LIMIT 1000";

const ANSWER: &str = "UPDATE postrider.pull_word SET taken = answer.taken \
     FROM UNNEST($1::bigint[], $2::boolean[]) AS answer (no, taken) WHERE pull_word.no = answer.no";

const ANSWERS: &str = "SELECT lease, taken FROM postrider.pull_word WHERE no = ANY($1) AND taken IS NOT NULL";

const REMOVE: &str = "DELETE FROM postrider.pull_word WHERE no = ANY($1)";

impl PullWords for Postgres {
    async fn lease_key(&self, fresh: LeaseKey) -> Result<LeaseKey, StoreError> {
        let write = sqlx::query("INSERT INTO postrider.pull_key (key) VALUES ($1) ON CONFLICT DO NOTHING");
        let write = write.bind(fresh.as_bytes().as_slice());
        self.limited("keeping the key of leases", write.execute(self.pool())).await?;
        let read = sqlx::query_scalar("SELECT key FROM postrider.pull_key").fetch_one(self.pool());
        let kept: Vec<u8> = self.limited("reading the key of leases", read).await?;
        LeaseKey::from_bytes(&kept)
            .ok_or_else(|| StoreError::new(StoreErrorKind::Other, "the key of leases has a wrong length"))
    }

    async fn leave_words(&self, words: Vec<PullWord>) -> Result<Vec<WordNumber>, StoreError> {
        let desks: Vec<&str> = words.iter().map(|word| word.desk.as_str()).collect();
        let leases: Vec<&str> = words.iter().map(|word| word.lease.as_str()).collect();
        let said = words.iter().map(|word| serde_json::to_string(&word.said));
        let said: Vec<String> = said.collect::<Result<_, _>>().map_err(|error| {
            StoreError::new(StoreErrorKind::Other, format!("what was said cannot be written: {error}"))
        })?;
        let write = sqlx::query_scalar(LEAVE).bind(desks).bind(leases).bind(said);
        let numbers: Vec<i64> =
            self.limited("leaving word about a lease", write.fetch_all(self.pool())).await?;
        Ok(numbers.into_iter().map(WordNumber).collect())
    }

    async fn words_for(&self, desks: Vec<String>) -> Result<Vec<(WordNumber, PullWord)>, StoreError> {
        let read = sqlx::query_as(UNANSWERED).bind(desks);
        let rows: Vec<(i64, String, String, String)> =
            self.limited("reading words about leases", read.fetch_all(self.pool())).await?;
        let read = |(no, desk, lease, said): (i64, String, String, String)| {
            // One of a later version is left to its patience.
            Some((WordNumber(no), PullWord { desk, lease, said: serde_json::from_str(&said).ok()? }))
        };
        Ok(rows.into_iter().filter_map(read).collect())
    }

    async fn answer_words(&self, answers: Vec<(WordNumber, bool)>) -> Result<(), StoreError> {
        let (numbers, taken): (Vec<i64>, Vec<bool>) =
            answers.into_iter().map(|(WordNumber(no), taken)| (no, taken)).unzip();
        let write = sqlx::query(ANSWER).bind(numbers).bind(taken);
        self.limited("answering words about leases", write.execute(self.pool())).await?;
        Ok(())
    }

    async fn word_answers(&self, words: &[WordNumber]) -> Result<Vec<(String, bool)>, StoreError> {
        let read = sqlx::query_as(ANSWERS).bind(numbers(words));
        self.limited("reading answers about leases", read.fetch_all(self.pool())).await
    }

    async fn remove_words(&self, words: &[WordNumber]) -> Result<(), StoreError> {
        let write = sqlx::query(REMOVE).bind(numbers(words));
        self.limited("removing words about leases", write.execute(self.pool())).await?;
        Ok(())
    }
}

fn numbers(words: &[WordNumber]) -> Vec<i64> {
    words.iter().map(|WordNumber(no)| *no).collect()
}
