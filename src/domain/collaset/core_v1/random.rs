//! Random values of a type, for tests.

use serde_json::{Map, Value, json};

use super::{Kind, fields};

/// A sequence of random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// The next one, below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn of(&mut self, choice: &[Value]) -> Value {
        choice[self.below(choice.len() as u64) as usize].clone()
    }

    /// A value of a type, empty and zero values and nulls among them.
    pub fn value(&mut self, kind: &Kind) -> Value {
        match kind {
            Kind::Text => self.of(&[json!(""), json!("a"), json!("b<&>"), json!("c")]),
            Kind::Bool => self.of(&[json!(false), json!(true)]),
            Kind::Int => self.of(&[json!(0), json!(1), json!(80)]),
            Kind::IntOrString => self.of(&[json!(0), json!(80), json!("80"), json!("http")]),
            Kind::Quantity => self.of(&[
                json!("0"),
                json!(1),
                json!(0.5),
                json!("1000m"),
                json!("1024Mi"),
                json!("1.5Gi"),
                json!("7Gi"),
                json!("1e3"),
            ]),
            Kind::Time => Value::Null,
            Kind::Pointer(inner) => match self.below(4) {
                0 => Value::Null,
                _ => self.value(inner),
            },
            Kind::List(inner) => (0..self.below(3)).map(|_| self.value(inner)).collect(),
            Kind::Map(inner) => (0..self.below(3))
                .map(|i| (format!("k{i}"), self.value(inner)))
                .collect::<Map<_, _>>()
                .into(),
            Kind::Struct(name) => {
                let mut out = Map::new();
                for field in fields(name) {
                    if field.always || self.below(5) == 0 {
                        out.insert(field.name.to_owned(), self.value(&field.kind));
                    }
                }
                out.into()
            }
        }
    }
}
