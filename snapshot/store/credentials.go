package store

import (
	"bytes"
	"net"
	"os"
	"strconv"
	"strings"

	"errors"

	"github.com/pelletier/go-toml/v2"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/snapshot"
)

// Credentials open a store. The zero value is an anonymous caller.
type Credentials struct {
	// User and Password, or Token, go to an HTTP server.
	User     string `toml:"user" json:"user,omitempty"`
	Password string `toml:"password" json:"password,omitempty"`
	Token    string `toml:"token" json:"token,omitempty"`
	// AccessKey, SecretKey and SessionToken sign the requests to S3.
	AccessKey    string `toml:"access_key" json:"access_key,omitempty"`
	SecretKey    string `toml:"secret_key" json:"secret_key,omitempty"`
	SessionToken string `toml:"session_token" json:"session_token,omitempty"`
}

// String keeps them out of logs.
func (c Credentials) String() string { return "credentials" }

// GoString does so for %#v.
func (c Credentials) GoString() string { return "credentials" }

// credentialsFile is snapshot-credentials.toml:
//
//	[[store]]
//	url = "https://store.example/app"
//	token = "…"
type credentialsFile struct {
	Store []struct {
		URL string `toml:"url"`
		Credentials
	} `toml:"store"`
}

// FindCredentials returns those of the file's store whose url is the longest
// prefix of l in whole components; without any, for s3, the AWS_* variables.
func FindCredentials(file []byte, l snapshot.Location) (Credentials, error) {
	var f credentialsFile
	d := toml.NewDecoder(bytes.NewReader(file)).DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		// The error shows the line, with what is secret in it.
		bad := policy.Errorf(policy.CodeConfigInvalid, opStore, "snapshot-credentials.toml is malformed")
		var de *toml.DecodeError
		if errors.As(err, &de) {
			row, _ := de.Position()
			bad = policy.Errorf(policy.CodeConfigInvalid, opStore, "snapshot-credentials.toml is malformed in line %d", row).With("line", strconv.Itoa(row))
		}
		return Credentials{}, bad
	}
	best, found := -1, Credentials{}
	for i, s := range f.Store {
		at, err := snapshot.ParseLocation(s.URL)
		if err != nil {
			return Credentials{}, policy.Errorf(policy.CodeConfigInvalid, opStore, "snapshot-credentials.toml: store %d has no valid url", i+1)
		}
		if at.Scheme == l.Scheme && at.Host == l.Host && (at.Endpoint == "" || at.Endpoint == l.Endpoint) &&
			(at.Path == l.Path || at.Path == "/" || strings.HasPrefix(l.Path, at.Path+"/")) && len(at.Path) > best {
			best, found = len(at.Path), s.Credentials
		}
	}
	if best < 0 && l.Scheme == "s3" {
		found = Credentials{AccessKey: os.Getenv("AWS_ACCESS_KEY_ID"), SecretKey: os.Getenv("AWS_SECRET_ACCESS_KEY"), SessionToken: os.Getenv("AWS_SESSION_TOKEN")}
	}
	return found, nil
}

// mayGoTo refuses to show credentials to the network in the clear.
func (c Credentials) mayGoTo(scheme, host string) error {
	if scheme == "https" || c == (Credentials{}) {
		return nil
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if ip := net.ParseIP(strings.Trim(name, "[]")); name == "localhost" || (ip != nil && ip.IsLoopback()) {
		return nil
	}
	return policy.Errorf(policy.CodeSnapshotStoreInvalid, opStore, "credentials are not sent over plain http to another host").
		WithHint("Use https.")
}

func cutScheme(u string) (scheme, host string, ok bool) { return strings.Cut(u, "://") }
