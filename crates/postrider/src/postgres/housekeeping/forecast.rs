//! What a round of housekeeping would do now, for `--dry-run`: the same questions as the round asks, and nothing after them.

use super::ahead::MISSING;
use super::{DETACHED, OLD, PARTITIONS, WAITING, filled, sql};
use crate::postgres::Postgres;
use crate::store::{Archive, HouseRules, Kept};

pub(super) async fn round(postgres: &Postgres, rules: &HouseRules) -> Result<Kept, sqlx::Error> {
    let mut kept = Kept::default();
    let mut connection = postgres.pool().acquire().await?;
    let partitioned = "SELECT partitioned FROM postrider.outbox WHERE name = {name}";
    let partitioned: bool = sqlx::query_scalar(sql(postgres, partitioned))
        .fetch_optional(&mut *connection)
        .await?
        .unwrap_or(false);
    if partitioned {
        let missing: Vec<(String, String, String)> =
            sqlx::query_as(sql(postgres, &MISSING.replace("{partitions}", PARTITIONS)))
                .bind(rules.partition.as_str())
                .bind(i32::from(rules.ahead))
                .fetch_all(&mut *connection)
                .await?;
        let table = postgres.table.table();
        kept.partitions_made = missing.into_iter().map(|(day, ..)| format!("{table}_p{day}")).collect();
        let old: Vec<String> = sqlx::query_scalar(sql(postgres, &OLD.replace("{partitions}", PARTITIONS)))
            .bind(rules.keep)
            .fetch_all(&mut *connection)
            .await?;
        for name in old {
            let waiting = sql(postgres, &filled(WAITING, &[("{part}", &name)]));
            let stays: bool = sqlx::query_scalar(waiting).fetch_one(&mut *connection).await?;
            if stays { kept.partitions_kept.push(name) } else { kept.partitions_ended.push(name) }
        }
        let detached: Vec<String> = sqlx::query_scalar(DETACHED)
            .bind(postgres.table.schema())
            .bind(table)
            .bind(true)
            .fetch_all(&mut *connection)
            .await?;
        kept.partitions_ended.extend(detached);
        for name in &kept.partitions_ended {
            let count = filled("SELECT count(*) FROM {schema}.\"{part}\"", &[("{part}", name)]);
            let count: i64 = sqlx::query_scalar(sql(postgres, &count)).fetch_one(&mut *connection).await?;
            kept.removed += count.unsigned_abs();
        }
    }
    let from = if partitioned { "{default}" } else { "{outbox}" };
    let old = format!("SELECT count(*) FROM {from} WHERE status = 'published' AND created_at < now() - $1");
    let old: i64 =
        sqlx::query_scalar(sql(postgres, &old)).bind(rules.keep).fetch_one(&mut *connection).await?;
    kept.removed += old.unsigned_abs();
    if rules.archive != Archive::Nowhere {
        kept.archived = kept.removed;
    }
    Ok(kept)
}
