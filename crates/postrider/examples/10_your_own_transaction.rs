//! On PostgreSQL, in a transaction that you opened yourself with sqlx: the order and its event, or neither.
//!
//! Needs a database with the schema (`postrider db migrate`):
//! `DATABASE_URL=postgres://… cargo run -p postrider --example 10_your_own_transaction`
#![allow(clippy::print_stdout, reason = "an example talks to people")]
#![allow(clippy::disallowed_methods, reason = "an example reads its own environment")]

use postrider::postgres::append_in;
use postrider::{Clock, Event};
use sqlx::Connection as _;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut connection = sqlx::PgConnection::connect(&std::env::var("DATABASE_URL")?).await?;
    let table =
        "CREATE TABLE IF NOT EXISTS public.example_order (id text PRIMARY KEY, total numeric NOT NULL)";
    sqlx::query(table).execute(&mut connection).await?;
    let clock = Clock::system();

    let mut transaction = connection.begin().await?;
    sqlx::query("INSERT INTO public.example_order VALUES ('rust-1', 12.50) ON CONFLICT DO NOTHING")
        .execute(&mut *transaction)
        .await?;
    let placed = Event::new("shop.order.placed")?
        .aggregate_id("rust-1")?
        .json(&serde_json::json!({ "order": "rust-1", "total": "12.50" }))?;
    let ids = append_in(&mut transaction, &clock, vec![placed]).await?;
    transaction.commit().await?;
    println!("committed {}", ids[0]);
    Ok(())
}
