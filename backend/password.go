package backend

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/argon2"
)

// argon2id, RFC 9106 section 4: the second recommended set (64 MiB, three passes),
// with fewer lanes since a small host logs people in beside its Workers.
const (
	argonTime    = 3
	argonMemory  = 64 << 10 // KiB
	argonThreads = 2
	argonKey     = 32
	minPassword  = 10
	maxPassword  = 1024
)

// HashPassword returns the encoded argon2id hash of a password.
func HashPassword(password string) (string, error) {
	if len(password) < minPassword || len(password) > maxPassword {
		return "", fmt.Errorf("a password has %d to %d bytes", minPassword, maxPassword)
	}
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // never fails
	return encodeHash(salt, argon2.IDKey([]byte(password), salt, argonTime, argonMemory, argonThreads, argonKey)), nil
}

func encodeHash(salt, key []byte) string {
	e := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, argonMemory, argonTime, argonThreads, e.EncodeToString(salt), e.EncodeToString(key))
}

// nobody is what an unknown name's password is compared with, so that the answer
// takes as long as for a known one.
var nobody = encodeHash(make([]byte, 16), make([]byte, argonKey))

// checkPassword compares in constant time.
func checkPassword(encoded, password string) (bool, error) {
	if len(password) > maxPassword {
		return false, nil
	}
	parts := strings.Split(encoded, "$")
	if len(parts) != 6 || parts[1] != "argon2id" {
		return false, errors.New("not an argon2id hash")
	}
	var version int
	var memory, time uint32
	var threads uint8
	if _, err := fmt.Sscanf(parts[2], "v=%d", &version); err != nil || version != argon2.Version {
		return false, errors.New("another version of argon2")
	}
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &memory, &time, &threads); err != nil || memory > 1<<20 || time > 16 || threads == 0 || time == 0 {
		return false, errors.New("argon2 parameters out of range")
	}
	salt, err := base64.RawStdEncoding.DecodeString(parts[4])
	if err != nil {
		return false, err
	}
	key, err := base64.RawStdEncoding.DecodeString(parts[5])
	if err != nil || len(key) == 0 {
		return false, errors.New("no key")
	}
	got := argon2.IDKey([]byte(password), salt, time, memory, threads, uint32(len(key)))
	return subtle.ConstantTimeCompare(got, key) == 1, nil
}
