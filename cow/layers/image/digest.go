package image

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"hash"
	"regexp"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// Digest is "sha256:…" or "sha512:…" of lower-case hexadecimals, as the OCI
// image specification writes it.
type Digest string

var digestPattern = regexp.MustCompile(`^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`)

func (d Digest) check(what string) error {
	if digestPattern.MatchString(string(d)) {
		return nil
	}
	return invalid("%s has the digest %q, which is no sha256 or sha512", what, policy.Printable(string(d)))
}

// blob is where an OCI layout has the content of a digest.
func (d Digest) blob() string {
	alg, hex, _ := strings.Cut(string(d), ":")
	return "blobs/" + alg + "/" + hex
}

func (d Digest) hash() hash.Hash {
	if strings.HasPrefix(string(d), "sha512:") {
		return sha512.New()
	}
	return sha256.New()
}

// matches compares a finished hash.
func (d Digest) matches(h hash.Hash) bool {
	_, want, _ := strings.Cut(string(d), ":")
	return hex.EncodeToString(h.Sum(nil)) == want
}

func digestOf(b []byte) Digest {
	h := sha256.Sum256(b)
	return Digest("sha256:" + hex.EncodeToString(h[:]))
}

func mismatch(what string, want Digest) error {
	return policy.Errorf(policy.CodeImageDigest, opOpen, "%s does not have its digest", what).With("digest", string(want))
}

// chain is the id of a layer on all those below it (OCI image-spec, "ChainID"),
// without the algorithm: the name under which layers are stored, so that two
// images share exactly what is the same.
func chain(parent string, diff Digest) string {
	if parent == "" {
		parent = string(diff)
	} else {
		parent = string(digestOf([]byte("sha256:" + parent + " " + string(diff))))
	}
	_, hex, _ := strings.Cut(parent, ":")
	return hex[:64] // a sha512 is cut: 256 bits are enough for a name
}
