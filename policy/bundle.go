package policy

import "strings"

// BundleDigest names a configuration bundle by its content: "sha256:" and 64
// lower-case hexadecimal digits.
type BundleDigest string

// BundleAt is where a sandbox has its bundle.
const BundleAt = "/run/yoi/config"

// Hex returns the digits, or why d is no digest.
func (d BundleDigest) Hex() (string, error) {
	if !ValidDigest(string(d)) {
		return "", Errorf(CodeBundleInvalid, "policy.bundle", "%q is not a bundle's digest", Printable(string(d))).
			WithHint("Write it as yoi bundle list shows it: sha256: and 64 lower-case hexadecimal digits.")
	}
	return strings.TrimPrefix(string(d), digestPrefix), nil
}
