package policy

import "strings"

// PatchDigest names a stored patch by its content: "sha256:" and 64 lower-case
// hexadecimal digits.
type PatchDigest string

// Hex returns the digits, or why d is no digest.
func (d PatchDigest) Hex() (string, error) {
	if !ValidDigest(string(d)) {
		return "", Errorf(CodePatchInvalid, "policy.patch", "%q is not a patch's digest", Printable(string(d))).
			WithHint("Write it as yoi patch list shows it: sha256: and 64 lower-case hexadecimal digits.")
	}
	return strings.TrimPrefix(string(d), digestPrefix), nil
}
