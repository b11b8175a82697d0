// Package stats compares two groups of measurements, and many pairs of groups.
//
// Words and sources:
//
//   - Welch's t-test does not assume equal variances (Welch, Biometrika 34, 1947).
//     Its confidence interval is for the difference of the means.
//   - The Mann-Whitney U test asks whether one group tends to be larger, and assumes
//     nothing about distributions (Annals of Mathematical Statistics 18, 1947). It is
//     exact where both groups have at most 8 values or so and no two are equal;
//     otherwise the normal approximation, corrected for ties and continuity.
//   - Effect size: Hedges' g is the difference of the means in standard deviations,
//     corrected for small groups (Journal of Educational Statistics 6, 1981). Cliff's
//     delta is the difference between the frequencies with which a value of either group
//   - Among many comparisons some are significant by chance. Holm's correction keeps
//     the chance of even one of these; Benjamini and Hochberg's keeps their share.
//
// All tests are two-sided. Tests check that the results equal scipy.stats.
package stats
