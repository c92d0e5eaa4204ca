// Package servicetest is a runtime.Service without a Runtime, for the tests of
// what stands in front of one: the API and the command line. It answers with
// values whose every field is set, so that a field which is lost on the way
// shows. It does not behave like a Runtime: nothing it is told changes it.
package servicetest
