package policy

import (
	"encoding/hex"
	"strings"
)

// PatchDigest names a stored patch by its content: "sha256:" and 64 lower-case
// hexadecimal digits.
type PatchDigest string

// Hex returns the digits, or why d is no digest.
func (d PatchDigest) Hex() (string, error) {
	digits, ok := strings.CutPrefix(string(d), "sha256:")
	if b, err := hex.DecodeString(digits); !ok || err != nil || len(b) != 32 || strings.ToLower(digits) != digits {
		return "", Errorf(CodePatchInvalid, "policy.patch", "%q is not a patch's digest", Printable(string(d))).
			WithHint("Write it as yoi patch list shows it: sha256: and 64 lower-case hexadecimal digits.")
	}
	return digits, nil
}
