//! The testkit against real servers. All of them are private: nothing has to run beforehand.

mod it {
    mod kill;
    mod life;
    mod postgres;
    mod rabbitmq;
    mod redis;
    mod shared;
    mod style;
    mod tools;
}
