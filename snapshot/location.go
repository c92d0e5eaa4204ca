package snapshot

import (
	"net/url"
	"path"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// Location is where a store is. It never holds credentials: see package store.
type Location struct {
	// Scheme is file, http, https or s3.
	Scheme string
	// Host is an HTTP server's host and port, or a bucket.
	Host string
	// Path is absolute and clean; for s3 it is "/" and the prefix of the keys.
	Path string
	// Endpoint is the URL of the S3 service, "" for Amazon's, and Region its region.
	Endpoint, Region string
}

func badLocation(why string) error {
	return policy.Errorf(policy.CodeSnapshotStoreInvalid, "snapshot.store", "the snapshot store's address %s", why)
}

// ParseLocation reads an absolute path, a file, http or https URL, or
// s3://BUCKET/PREFIX, behind which ?endpoint=URL and region=NAME may stand.
func ParseLocation(s string) (Location, error) {
	if s == "" || len(s) > 4096 || strings.ContainsAny(s, "\x00\n\r") {
		return Location{}, badLocation("is empty, too long, or holds a NUL or a line break")
	}
	if s[0] == '/' {
		return Location{Scheme: "file", Path: path.Clean(s)}, nil
	}
	u, err := url.Parse(s)
	if err != nil { // the error repeats the URL with all that it holds
		return Location{}, badLocation("is not a well-formed URL")
	}
	if u.User != nil {
		return Location{}, badLocation("holds credentials, which belong into the credentials file")
	}
	l := Location{Scheme: u.Scheme, Host: u.Host, Path: path.Clean("/" + u.Path)}
	switch {
	case u.Opaque != "" || u.Fragment != "" || (u.RawQuery != "" && u.Scheme != "s3"):
		return Location{}, badLocation("has parts that such an address has not")
	case u.Scheme == "file":
		if u.Host != "" && u.Host != "localhost" {
			return Location{}, badLocation("names a directory of another host")
		}
		l.Host = ""
	case u.Scheme == "http" || u.Scheme == "https":
		if u.Hostname() == "" {
			return Location{}, badLocation("has no host")
		}
	case u.Scheme == "s3":
		return l.withService(u)
	default:
		return Location{}, badLocation("is no directory, http, https or s3 URL")
	}
	return l, nil
}

// withService takes the service of an s3 URL's query.
func (l Location) withService(u *url.URL) (Location, error) {
	if u.Host == "" || u.Port() != "" || strings.HasPrefix(u.Host, "-") {
		return Location{}, badLocation("has no bucket")
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Location{}, badLocation("has a malformed query")
	}
	for k, v := range q {
		if len(v) != 1 || (k != "endpoint" && k != "region") {
			return Location{}, badLocation("has another query than endpoint and region")
		}
	}
	l.Endpoint, l.Region = q.Get("endpoint"), q.Get("region")
	if l.Endpoint != "" {
		e, err := url.Parse(l.Endpoint)
		if err != nil || (e.Scheme != "http" && e.Scheme != "https") || e.Hostname() == "" || e.User != nil || e.RawQuery != "" || strings.Trim(e.Path, "/") != "" {
			return Location{}, badLocation("has an endpoint that is no http or https URL of a host alone")
		}
		l.Endpoint = e.Scheme + "://" + e.Host
	}
	return l, nil
}

// String is the form that ParseLocation reads. Equal locations have equal forms.
func (l Location) String() string {
	u := url.URL{Scheme: l.Scheme, Host: l.Host, Path: l.Path}
	q := url.Values{}
	if l.Endpoint != "" {
		q.Set("endpoint", l.Endpoint)
	}
	if l.Region != "" {
		q.Set("region", l.Region)
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// Name is what a repository may be called after the store: its last directory,
// or the bucket or host.
func (l Location) Name() string {
	if base := path.Base(l.Path); base != "/" {
		return base
	}
	return l.Host
}

// ObjectName is the name of an archive in a store.
func ObjectName(digest string) string {
	return strings.TrimPrefix(digest, "sha256:") + extension
}

const extension = ".yoisnap"

// DigestOf reads an ObjectName.
func DigestOf(name string) (digest string, ok bool) {
	hex, ok := strings.CutSuffix(name, extension)
	return "sha256:" + hex, ok && policy.ValidDigest("sha256:"+hex)
}
