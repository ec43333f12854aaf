//! Exact decimals: what amounts and rates are before they are whole minor units.
//!
//! A number is an integer and a scale, and nothing here ever rounds unless it is called `round`. What does not fit is an
//! error, never a neighbour of the right answer. Numbers come from text; no float is ever involved.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// The most digits after the point.
pub const MAX_SCALE: u32 = 30;

/// `digits` / 10^`scale`, without trailing zeros, so that equal numbers are equal values.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decimal {
    digits: i128,
    scale: u32,
}

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecimalError {
    /// The text is not a decimal number.
    #[error("is not a decimal number")]
    Unreadable,
    /// More digits than can be kept exactly.
    #[error("has more digits than can be kept exactly (about 38)")]
    TooLarge,
    /// Division by zero.
    #[error("is divided by zero")]
    DividedByZero,
}

#[allow(clippy::should_implement_trait, reason = "each can fail, which the operators cannot")]
impl Decimal {
    /// Nothing.
    pub const ZERO: Self = Self { digits: 0, scale: 0 };
    /// Unity.
    pub const ONE: Self = Self { digits: 1, scale: 0 };

    /// `digits` / 10^`scale`.
    pub fn new(digits: i128, scale: u32) -> Result<Self, DecimalError> {
        let mut number = Self { digits, scale };
        while number.scale > 0 && number.digits % 10 == 0 {
            number.digits /= 10;
            number.scale -= 1;
        }
        // The least integer has no positive twin, so it could not be negated.
        let fits = number.scale <= MAX_SCALE && number.digits != i128::MIN;
        if fits { Ok(number) } else { Err(DecimalError::TooLarge) }
    }

    /// Whether it is below zero.
    pub fn is_negative(self) -> bool {
        self.digits < 0
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.digits == 0
    }

    /// How many digits stand after the point.
    pub fn scale(self) -> u32 {
        self.scale
    }

    /// The sum.
    pub fn add(self, other: Self) -> Result<Self, DecimalError> {
        let (left, right, scale) = self.aligned(other)?;
        Self::new(left.checked_add(right).ok_or(DecimalError::TooLarge)?, scale)
    }

    /// The difference.
    pub fn sub(self, other: Self) -> Result<Self, DecimalError> {
        self.add(other.negated())
    }

    /// The product.
    pub fn mul(self, other: Self) -> Result<Self, DecimalError> {
        let digits = self.digits.checked_mul(other.digits).ok_or(DecimalError::TooLarge)?;
        Self::new(digits, self.scale + other.scale)
    }

    /// The quotient, half-even at 18 digits after the point. Round it yourself before it becomes an amount.
    pub fn div(self, other: Self) -> Result<Self, DecimalError> {
        const DIGITS: u32 = 18;
        if other.digits == 0 {
            return Err(DecimalError::DividedByZero);
        }
        let (left, right, _) = self.aligned(other)?;
        let raised = 10_i128.pow(DIGITS).checked_mul(left).ok_or(DecimalError::TooLarge)?;
        Self::new(half_even(raised, right), DIGITS)
    }

    /// With the other sign. `i128::MIN` is never kept, so this cannot fail.
    #[must_use]
    pub fn negated(self) -> Self {
        Self { digits: -self.digits, scale: self.scale }
    }

    /// To so many digits after the point, half to even, which favours nobody.
    pub fn round(self, scale: u32) -> Result<Self, DecimalError> {
        if self.scale <= scale {
            return Ok(self);
        }
        let divisor = power(self.scale - scale)?;
        Self::new(half_even(self.digits, divisor), scale)
    }

    /// How many units of 10^-`scale` it is, if it is a whole number of them.
    pub fn units(self, scale: u32) -> Option<i128> {
        let factor = power(scale.checked_sub(self.scale)?).ok()?;
        self.digits.checked_mul(factor)
    }

    fn aligned(self, other: Self) -> Result<(i128, i128, u32), DecimalError> {
        let scale = self.scale.max(other.scale);
        let left = self.units(scale).ok_or(DecimalError::TooLarge)?;
        let right = other.units(scale).ok_or(DecimalError::TooLarge)?;
        Ok((left, right, scale))
    }
}

fn power(exponent: u32) -> Result<i128, DecimalError> {
    10_i128.checked_pow(exponent).ok_or(DecimalError::TooLarge)
}

/// The quotient of two integers, rounded half to even.
pub(crate) fn half_even(dividend: i128, divisor: i128) -> i128 {
    let (quotient, rest) = (dividend / divisor, dividend % divisor);
    let away = if (dividend < 0) == (divisor < 0) { 1 } else { -1 };
    let twice = rest.unsigned_abs().saturating_mul(2);
    match twice.cmp(&divisor.unsigned_abs()) {
        Ordering::Less => quotient,
        Ordering::Equal if quotient % 2 == 0 => quotient,
        Ordering::Equal | Ordering::Greater => quotient + away,
    }
}

impl FromStr for Decimal {
    type Err = DecimalError;

    /// As JSON writes numbers: `-12.50`, `1e3`. Every digit counts.
    fn from_str(text: &str) -> Result<Self, DecimalError> {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (sign, plain) = mantissa.strip_prefix('-').map_or((1, mantissa), |rest| (-1, rest));
        let (whole, fraction) = plain.split_once('.').unwrap_or((plain, "0"));
        let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(whole) || !is_digits(fraction) {
            return Err(DecimalError::Unreadable);
        }
        let exponent: i32 = exponent.parse().map_err(|_| DecimalError::Unreadable)?;
        let fraction = fraction.trim_end_matches('0');
        let mut digits: i128 = 0;
        for digit in whole.bytes().chain(fraction.bytes()) {
            let next = digits.checked_mul(10).and_then(|ten| ten.checked_add(i128::from(digit - b'0')));
            digits = next.ok_or(DecimalError::TooLarge)?;
        }
        if digits == 0 {
            return Ok(Self::ZERO);
        }
        let scale = i64::try_from(fraction.len()).map_err(|_| DecimalError::TooLarge)? - i64::from(exponent);
        match u32::try_from(scale) {
            Ok(scale) if scale <= 2 * MAX_SCALE => Self::new(sign * digits, scale),
            Ok(_) => Err(DecimalError::TooLarge),
            Err(_) => {
                let zeros = u32::try_from(-scale).map_err(|_| DecimalError::TooLarge)?;
                Self::new(sign * digits.checked_mul(power(zeros)?).ok_or(DecimalError::TooLarge)?, 0)
            }
        }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:0width$}", self.digits.unsigned_abs(), width = self.scale as usize + 1);
        let (whole, fraction) = digits.split_at(digits.len() - self.scale as usize);
        let sign = if self.digits < 0 { "-" } else { "" };
        if fraction.is_empty() { write!(f, "{sign}{whole}") } else { write!(f, "{sign}{whole}.{fraction}") }
    }
}

impl fmt::Debug for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        if let Ok((left, right, _)) = self.aligned(*other) {
            return left.cmp(&right);
        }
        // They cannot be written with one scale: the whole parts first, then what is left, which is written with few digits.
        let parts = |number: &Self| {
            let unit = 10_i128.pow(number.scale);
            (number.digits / unit, number.digits % unit * 10_i128.pow(MAX_SCALE - number.scale))
        };
        parts(self).cmp(&parts(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decimal(text: &str) -> Decimal {
        text.parse().unwrap()
    }

    #[test]
    fn every_way_to_write_a_number_is_that_number() {
        for same in ["150", "1.5e2", "150.00", "15E+1", "0.150e3"] {
            assert_eq!(decimal(same), decimal("150"), "{same}");
        }
        assert_eq!(decimal("-0.0"), Decimal::ZERO);
        assert_eq!(decimal("1e-2").to_string(), "0.01");
        assert_eq!(decimal("-0.05").to_string(), "-0.05");
    }

    #[test]
    fn what_cannot_be_kept_exactly_is_refused() {
        assert_eq!("1e99".parse::<Decimal>(), Err(DecimalError::TooLarge));
        assert_eq!("1e-99".parse::<Decimal>(), Err(DecimalError::TooLarge));
        assert_eq!("1".repeat(60).parse::<Decimal>(), Err(DecimalError::TooLarge));
        for bad in ["", "-", ".5", "5.", "1,5", "NaN", "0x1", "1e", "--1", " 1", "1e99999999999"] {
            assert_eq!(bad.parse::<Decimal>(), Err(DecimalError::Unreadable), "{bad:?}");
        }
    }

    #[test]
    fn halves_go_to_the_even_neighbour() {
        for (exact, rounded) in
            [("0.125", "0.12"), ("0.135", "0.14"), ("-0.125", "-0.12"), ("0.1251", "0.13")]
        {
            assert_eq!(decimal(exact).round(2).unwrap().to_string(), rounded, "{exact}");
        }
    }

    /// What two large factors come to may be the one integer that cannot be negated.
    #[test]
    fn whatever_is_kept_can_be_negated() {
        let (half, other) = (Decimal::new(-(1 << 64), 0).unwrap(), Decimal::new(1 << 63, 0).unwrap());
        assert_eq!(half.mul(other), Err(DecimalError::TooLarge));
        assert_eq!(Decimal::new(i128::MIN, 0), Err(DecimalError::TooLarge));
        let least = Decimal::new(i128::MIN + 1, 0).unwrap();
        assert_eq!(least.negated().negated(), least);
    }

    #[test]
    fn numbers_that_share_no_scale_are_compared_all_the_same() {
        let long = decimal("170141183.400000000000000000000000000001");
        for (short, order) in [
            ("170141183.5", Ordering::Less),
            ("170141183.3", Ordering::Greater),
            ("170141184", Ordering::Less),
            ("999999999999999999999", Ordering::Less),
            ("-999999999999999999999", Ordering::Greater),
        ] {
            let short = decimal(short);
            assert_eq!((long.cmp(&short), short.cmp(&long)), (order, order.reverse()), "{short}");
            let (short, long) = (short.negated(), long.negated());
            assert_eq!(long.cmp(&short), order.reverse(), "{short}");
        }
    }

    #[test]
    fn a_quotient_by_zero_is_an_error() {
        assert_eq!(Decimal::ONE.div(Decimal::ZERO), Err(DecimalError::DividedByZero));
        assert_eq!(decimal("119").div(decimal("1.19")).unwrap(), decimal("100"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(digits in any::<i64>(), scale in 0_u32..18) {
            let number = Decimal::new(digits.into(), scale).unwrap();
            prop_assert_eq!(decimal(&number.to_string()), number);
        }

        #[test]
        fn sums_can_be_taken_apart(a in any::<i64>(), b in any::<i64>(), s in 0_u32..9, t in 0_u32..9) {
            let (a, b) = (Decimal::new(a.into(), s).unwrap(), Decimal::new(b.into(), t).unwrap());
            prop_assert_eq!(a.add(b).unwrap().sub(b).unwrap(), a);
        }

        #[test]
        fn rounding_moves_by_half_a_unit_at_most(digits in any::<i64>(), scale in 3_u32..12) {
            let number = Decimal::new(digits.into(), scale).unwrap();
            let moved = number.round(2).unwrap().sub(number).unwrap();
            prop_assert!(moved <= decimal("0.005") && moved >= decimal("-0.005"));
        }
    }
}
