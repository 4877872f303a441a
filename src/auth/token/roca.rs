//! The fingerprint of RSA keys that can be factored because of how one vendor's chips made their primes.
//! Never judges anything else about a key.

/// Whether an RSA modulus (big-endian bytes) has the ROCA fingerprint (CVE-2017-15361).
///
/// The flawed generator made primes of the form `k·M + (65537^a mod M)`, M a product of small primes. So the modulus is
/// a power of 65537 modulo each of those primes. A sound modulus looks like that once in about 2^27.
pub(super) fn is_fingerprinted(modulus: &[u8]) -> bool {
    PRIMES.iter().all(|&prime| is_power_of_65537(remainder(modulus, prime), prime))
}

fn remainder(modulus: &[u8], prime: u32) -> u32 {
    modulus.iter().fold(0, |rest, &byte| ((rest << 8) | u32::from(byte)) % prime)
}

fn is_power_of_65537(value: u32, prime: u32) -> bool {
    let generator = 65537 % prime;
    let mut power = 1;
    // The powers repeat after at most `prime - 1` steps.
    for _ in 1..prime {
        if power == value {
            return true;
        }
        power = power * generator % prime;
    }
    false
}

/// The odd primes up to 167: their product with 2 is the M of the shortest keys, and every longer key's M contains it.
const PRIMES: [u32; 38] = [
    3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109,
    113, 127, 131, 137, 139, 149, 151, 157, 163, 167,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_of_65537_is_fingerprinted_and_its_neighbour_is_not() {
        let (mut power, mut bytes) = (vec![1_u8], Vec::new());
        for _ in 0..128 {
            // Little-endian schoolbook multiplication by 65537 = 2^16 + 1.
            bytes.clear();
            let mut carry = 0_u32;
            for index in 0..power.len() + 3 {
                let low = power.get(index).copied().map_or(0, u32::from);
                let high = index.checked_sub(2).and_then(|i| power.get(i)).copied().map_or(0, u32::from);
                let sum = low + high + carry;
                bytes.push(u8::try_from(sum & 0xff).unwrap_or_default());
                carry = sum >> 8;
            }
            while bytes.last() == Some(&0) {
                bytes.pop();
            }
            std::mem::swap(&mut power, &mut bytes);
        }
        power.reverse();
        assert_eq!(power.len(), 257);
        assert!(is_fingerprinted(&power));
        if let Some(last) = power.last_mut() {
            *last ^= 2;
        }
        assert!(!is_fingerprinted(&power));
    }
}
