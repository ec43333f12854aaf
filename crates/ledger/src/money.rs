//! Money: whole minor units of a currency, with checked arithmetic.
//!
//! Sums are kept in 128 bits, where no number of lines that a disk can hold overflows.

use std::fmt;
use std::str::FromStr;

use crate::decimal::{Decimal, DecimalError};
use crate::refusal::Refusal;

/// The largest amount that an event may bring in one line, in minor units: ten million million where there are two digits. What books
/// carry on, closings and opening balances, may be as much as they hold.
pub const MAX_AMOUNT: i64 = 1_000_000_000_000_000;

/// Codes of ISO 4217 whose minor unit is not a hundredth. Every other code has two digits.
const DIGITS: [(&str, u32); 4] = [
    ("BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF", 0),
    ("BHD IQD JOD KWD LYD OMR TND", 3),
    ("CLF UYW", 4),
    (
        "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF CHW \
         CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR \
         ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV \
         MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD \
         SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XCD XCG YER ZAR ZMW ZWG",
        2,
    ),
];

/// A currency of ISO 4217.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Currency {
    code: [u8; 3],
    digits: u8,
}

impl Currency {
    /// By its code, such as `EUR`.
    pub fn new(code: &str) -> Result<Self, UnknownCurrency> {
        let unknown = || UnknownCurrency(code.chars().take(16).collect());
        let letters: [u8; 3] = code.as_bytes().try_into().map_err(|_| unknown())?;
        // Every code is three letters and a space.
        let is_in = |codes: &str| codes.as_bytes().chunks(4).any(|known| known.starts_with(&letters));
        let found = DIGITS.iter().rev().find(|(codes, _)| is_in(codes));
        let (_, digits) = found.ok_or_else(unknown)?;
        Ok(Self { code: letters, digits: u8::try_from(*digits).unwrap_or(2) })
    }

    /// Its three letters.
    pub fn code(&self) -> &str {
        std::str::from_utf8(&self.code).unwrap_or("XXX")
    }

    /// How many digits its minor unit has after the point.
    pub fn digits(&self) -> u32 {
        self.digits.into()
    }

    /// Minor units as people write them: `1250` of EUR is `12.50`.
    pub fn show(&self, minor: i128) -> String {
        let digits = self.digits as usize;
        let text = format!("{:0width$}", minor.unsigned_abs(), width = digits + 1);
        let (whole, fraction) = text.split_at(text.len() - digits);
        let sign = if minor < 0 { "-" } else { "" };
        if digits == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
    }

    /// An exact decimal as minor units. Never rounds: a digit too many is refused.
    pub fn minor(&self, amount: Decimal) -> Result<Amount, Refusal> {
        self.minor_up_to(amount, MAX_AMOUNT)
    }

    /// The same of what was added up elsewhere, such as an opening balance: as much as books hold.
    pub fn minor_held(&self, amount: Decimal) -> Result<Amount, Refusal> {
        self.minor_up_to(amount, i64::MAX)
    }

    fn minor_up_to(self, amount: Decimal, most: i64) -> Result<Amount, Refusal> {
        if amount.is_zero() || amount.is_negative() {
            return Err(Refusal::AmountNotPositive { amount: amount.to_string() });
        }
        if amount.scale() > self.digits() {
            return Err(Refusal::TooManyDigits { amount: amount.to_string(), currency: self });
        }
        let units = amount.units(self.digits()).filter(|units| *units <= i128::from(most));
        let units = units.and_then(|units| i64::try_from(units).ok());
        units.map(Amount).ok_or_else(|| Refusal::AmountTooLarge { amount: amount.to_string() })
    }
}

/// Not a currency of ISO 4217.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a currency of ISO 4217; write its code in capitals, such as EUR")]
pub struct UnknownCurrency(pub String);

impl FromStr for Currency {
    type Err = UnknownCurrency;
    fn from_str(code: &str) -> Result<Self, UnknownCurrency> {
        Self::new(code)
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl serde::Serialize for Currency {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

impl<'de> serde::Deserialize<'de> for Currency {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let code = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::new(&code).map_err(serde::de::Error::custom)
    }
}

/// Minor units, more than none. At most [`MAX_AMOUNT`] of an event or of what people write; more where books carry on what they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Amount(i64);

impl Amount {
    /// No amount, in a line that carries a base amount alone: what rounding or a closing leaves over.
    pub(crate) const NONE: Self = Self(0);

    /// So many minor units.
    pub fn new(minor: i64) -> Option<Self> {
        (1..=MAX_AMOUNT).contains(&minor).then_some(Self(minor))
    }

    /// So many minor units of what books hold: the sum of a year, an opening balance, what undoes one of them.
    pub(crate) fn held(minor: i64) -> Option<Self> {
        (minor > 0).then_some(Self(minor))
    }

    /// The minor units.
    pub fn minor(self) -> i64 {
        self.0
    }

    /// At a rate of the other currency per unit of this one, rounded half to even to that currency's minor unit. May be zero.
    pub fn converted(self, from: Currency, to: Currency, rate: Decimal) -> Result<i64, Refusal> {
        let too_large = |_: DecimalError| Refusal::AmountTooLarge { amount: from.show(self.0.into()) };
        let exact = Decimal::new(self.0.into(), from.digits())
            .and_then(|amount| amount.mul(rate))
            .map_err(too_large)?;
        let rounded = exact.round(to.digits()).map_err(too_large)?;
        let most = if self.0 > MAX_AMOUNT { i64::MAX } else { MAX_AMOUNT };
        let units = rounded.units(to.digits()).filter(|units| *units <= i128::from(most));
        units.and_then(|units| i64::try_from(units).ok()).ok_or_else(|| too_large(DecimalError::TooLarge))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn currency(code: &str) -> Currency {
        Currency::new(code).unwrap()
    }

    fn minor(code: &str, amount: &str) -> Result<i64, &'static str> {
        currency(code).minor(amount.parse().unwrap()).map(Amount::minor).map_err(|refusal| refusal.code())
    }

    #[test]
    fn amounts_are_whole_minor_units() {
        assert_eq!(minor("EUR", "12.5"), Ok(1250));
        assert_eq!(minor("JPY", "12"), Ok(12));
        assert_eq!(minor("KWD", "1.234"), Ok(1234));
    }

    #[test]
    fn every_bad_amount_has_its_refusal() {
        assert_eq!(minor("EUR", "12.501"), Err("too_many_digits"));
        assert_eq!(minor("JPY", "0.5"), Err("too_many_digits"));
        assert_eq!(minor("EUR", "0"), Err("amount_not_positive"));
        assert_eq!(minor("EUR", "-1"), Err("amount_not_positive"));
        assert_eq!(minor("EUR", "1e30"), Err("amount_too_large"));
    }

    #[test]
    fn what_books_hold_may_be_more_than_an_event_brings() {
        let held = |amount: &str| currency("EUR").minor_held(amount.parse().unwrap()).map(Amount::minor);
        assert_eq!(minor("EUR", "10000000000000.01"), Err("amount_too_large"));
        assert_eq!(held("10000000000000.01"), Ok(MAX_AMOUNT + 1));
        assert_eq!(held("92233720368547758.07"), Ok(i64::MAX));
        assert_eq!(held("92233720368547758.08").unwrap_err().code(), "amount_too_large");
        let much = Amount::held(2 * MAX_AMOUNT).unwrap();
        assert_eq!(much.converted(currency("USD"), currency("EUR"), Decimal::ONE), Ok(2 * MAX_AMOUNT));
    }

    #[test]
    fn only_currencies_of_the_standard_are_known() {
        assert_eq!(currency("XCG").digits(), 2, "of Curaçao and Sint Maarten since 2025");
        for bad in ["eur", "EURO", "XXY", "", "€", "US D"] {
            assert!(Currency::new(bad).is_err(), "{bad:?}");
        }
    }

    /// It reads amounts of exports, so it has to know where their points stand.
    #[test]
    fn the_verifier_in_python_knows_the_same_digits() {
        let python = include_str!("../../../docs/ledger-verify.py");
        for (codes, digits) in DIGITS.iter().filter(|(_, digits)| *digits != 2) {
            assert!(python.contains(&format!("{digits}: \"{codes}\",")), "{digits} digits");
        }
    }

    #[test]
    fn conversion_rounds_half_to_even() {
        let euros = Amount::new(1005).unwrap();
        assert_eq!(euros.converted(currency("EUR"), currency("USD"), "1.1".parse().unwrap()), Ok(1106));
        assert_eq!(euros.converted(currency("EUR"), currency("JPY"), "160".parse().unwrap()), Ok(1608));
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(units in 1..MAX_AMOUNT, code in prop::sample::select(vec!["EUR", "JPY", "KWD", "CLF"])) {
            let shown = currency(code).show(units.into());
            prop_assert_eq!(minor(code, &shown), Ok(units));
        }
    }
}
