// Package s3 is the program yoi-s3: one request of package store, served by the
// client library for S3. The library stands behind this file alone.
package s3

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/snapshot"
	"yoi.dev/yoi-runtime/snapshot/store"
)

// Main serves the request on standard input and returns the exit code.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	err := serve(ctx)
	if err == nil {
		return 0
	}
	d := policy.AsDiagnostic(err)
	f := store.S3Failure{Diagnostic: d}
	if d.Cause != nil {
		f.Cause = d.Cause.Error()
	}
	_ = json.NewEncoder(os.Stderr).Encode(f) // the exit code says so, too
	return 1
}

const op = "snapshot.s3"

func serve(ctx context.Context) error {
	var req store.S3Request
	if err := json.NewDecoder(io.LimitReader(os.Stdin, 1<<20)).Decode(&req); err != nil {
		return policy.Errorf(policy.CodeBadRequest, op, "yoi-s3 is started by the other programs").Because(err)
	}
	c, err := client(req)
	if err != nil {
		return err
	}
	b := bucket{c, req.Location.Host, strings.Trim(req.Location.Path, "/")}
	switch req.Op {
	case "get":
		err = b.get(ctx, req)
	case "put":
		err = b.put(ctx, req)
	case "list":
		err = b.list(ctx)
	case "remove":
		err = b.remove(ctx, req.Digest)
	default:
		return policy.Errorf(policy.CodeBadRequest, op, "%q is no request", policy.Printable(req.Op))
	}
	return storeError(err, req.Digest)
}

func client(req store.S3Request) (*minio.Client, error) {
	endpoint, secure := "s3.amazonaws.com", true
	if scheme, host, ok := strings.Cut(req.Location.Endpoint, "://"); ok {
		endpoint, secure = host, scheme == "https"
	}
	k := req.Credentials
	transport := &bounded{rt: store.Watched(store.Transport(req.Stall), req.Stall)}
	transport.left.Store(maxAnswers)
	o := &minio.Options{
		Creds:      credentials.NewStaticV4(k.AccessKey, k.SecretKey, k.SessionToken),
		Secure:     secure,
		Region:     req.Location.Region,
		Transport:  transport,
		MaxRetries: 3,
	}
	c, err := minio.New(endpoint, o)
	if err != nil {
		return nil, policy.Errorf(policy.CodeSnapshotStoreInvalid, op, "the S3 store's address is not one").Because(err)
	}
	return c, nil
}

// maxAnswers bounds what a store may say in the answers to one request of ours,
// all together: some hundred thousand archives in a listing.
const maxAnswers = 128 << 20

// bounded ends the answers that the library decodes in memory, as many as the
// store likes to give. An object itself, which is asked for without a query, is
// streamed, and bounded by who reads it.
type bounded struct {
	rt   http.RoundTripper
	left atomic.Int64 // parts are put in parallel
}

func (b *bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := b.rt.RoundTrip(req)
	if err == nil && req.URL.RawQuery != "" {
		res.Body = &boundedBody{res.Body, b}
	}
	return res, err
}

type boundedBody struct {
	io.ReadCloser
	of *bounded
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.of.left.Add(-int64(n)) < 0 {
		return n, policy.Errorf(policy.CodeSnapshotStoreFailed, op, "the snapshot store's answers are larger than %d bytes", int64(maxAnswers))
	}
	return n, err
}

type bucket struct {
	c      *minio.Client
	name   string
	prefix string
}

func (b bucket) key(name string) string {
	if b.prefix == "" {
		return name
	}
	return b.prefix + "/" + name
}

func (b bucket) get(ctx context.Context, req store.S3Request) error {
	core := minio.Core{Client: b.c}
	r, info, _, err := core.GetObject(ctx, b.name, b.key(snapshot.ObjectName(req.Digest)), minio.GetObjectOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := io.Copy(os.Stdout, r)
	if err == nil && n != info.Size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (b bucket) put(ctx context.Context, req store.S3Request) error {
	archive := os.NewFile(3, "archive")
	_, err := b.c.PutObject(ctx, b.name, b.key(snapshot.ObjectName(req.Digest)), io.NewSectionReader(archive, 0, req.Size), req.Size,
		minio.PutObjectOptions{ContentType: "application/zstd"})
	return err
}

func (b bucket) list(ctx context.Context) error {
	items := []store.Item{}
	o := minio.ListObjectsOptions{}
	if b.prefix != "" {
		o.Prefix = b.prefix + "/"
	}
	for obj := range b.c.ListObjectsIter(ctx, b.name, o) {
		if obj.Err != nil {
			return obj.Err
		}
		if digest, ok := snapshot.DigestOf(strings.TrimPrefix(obj.Key, o.Prefix)); ok {
			items = append(items, store.Item{Digest: digest, Bytes: obj.Size, StoredAt: obj.LastModified})
		}
	}
	return json.NewEncoder(os.Stdout).Encode(items)
}

// remove asks first: to S3 removing what is not there is a success.
func (b bucket) remove(ctx context.Context, digest string) error {
	key := b.key(snapshot.ObjectName(digest))
	if _, err := b.c.StatObject(ctx, b.name, key, minio.StatObjectOptions{}); err != nil {
		return err
	}
	return b.c.RemoveObject(ctx, b.name, key, minio.RemoveObjectOptions{})
}

func storeError(err error, digest string) error {
	var d *policy.Diagnostic
	var answer minio.ErrorResponse
	switch {
	case err == nil, errors.As(err, &d):
		return err
	case errors.As(err, &answer) && answer.StatusCode != 0:
		e := store.StatusError(answer.StatusCode, digest)
		if e == nil {
			e = policy.Errorf(policy.CodeSnapshotStoreFailed, op, "the snapshot store gave an answer that is none")
		}
		return policy.AsDiagnostic(e).With("s3_code", policy.Printable(answer.Code)).Because(errors.New(answer.Code))
	}
	return store.ClientError(err)
}
