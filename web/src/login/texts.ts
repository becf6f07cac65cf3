/** Messages of failed logins, for the cases in which the server's text is written for programs. */
import { asApiError } from "../api/errors.ts";

/** Return what the login page shows. `credentials` names what was refused, for example "user name or password". */
export function loginProblem(problem: unknown, credentials: string): string {
  const error = asApiError(problem);
  if (error.code === "login_throttled") {
    const wait = error.retryAfterS === null ? "later" : `in ${duration(error.retryAfterS)}`;
    return `Too many failed logins. Try again ${wait}.`;
  }
  if (error.code === "user_inactive") return "This user is disabled. Ask an administrator.";
  if (error.httpStatus === 401 && error.code !== "issuer_login_refused") return `The ${credentials} is wrong.`;
  return error.message;
}

function duration(seconds: number): string {
  if (seconds < 100) return seconds === 1 ? "1 second" : `${seconds} seconds`;
  return `${Math.ceil(seconds / 60)} minutes`;
}
