-- One script per operation on records; the server runs each as one atomic step.
--
-- KEYS[1], the names: a sorted set of the partition's key names, all with score 0, so that they stand in byte order.
-- KEYS[2], the ends:  the same names, scored by their expiry in Unix milliseconds, so that those that are over stand first.
-- KEYS[3] and on:     records, each a plain string with the server's own expiry.
-- All of them have the same hash tag, so a cluster keeps them together.
--
-- A record is written before its names are: at maxmemory the first write of a script is refused, and later ones are not,
-- so a script is applied as a whole or not at all. The clock is the server's; a script learns the time from the expiry
-- that the server gave a record, because TIME may differ from it by the run of the script.

-- name: shared
local names, ends = KEYS[1], KEYS[2]

-- A name is what follows the colon of 'namespace:{tag}:name'; the names' own key is 'namespace:{tag}#names'.
local function name_of(record)
  return string.sub(record, #names - 4)
end

-- Removes names that are over, a few per write: more than a write can add, and never enough to hold up the server.
local function prune(now, limit)
  local over = redis.pcall('ZRANGE', ends, '-inf', string.format('(%.0f', now), 'BYSCORE', 'LIMIT', 0, limit)
  if #over > 0 and type(redis.pcall('ZREMRANGEBYRANK', ends, 0, #over - 1)) == 'number' then
    redis.call('ZREM', names, unpack(over))
  end
end

-- Lets both indexes end with the last of their records, a second later at most: an abandoned partition leaves nothing
-- behind, and a busy one writes the new end once a second, not every time.
local function settle()
  local last = redis.call('ZRANGE', ends, -1, -1, 'WITHSCORES')[2]
  if last then
    local until_ms, last_ms = redis.call('PEXPIRETIME', ends), tonumber(last)
    if until_ms < last_ms or until_ms > last_ms + 1000 then
      local text = string.format('%.0f', last_ms + 1000)
      redis.call('PEXPIREAT', names, text)
      redis.call('PEXPIREAT', ends, text)
    end
  end
end

local function note(record)
  local expires, name = redis.call('PEXPIRETIME', record), name_of(record)
  redis.call('ZADD', names, 0, name)
  redis.call('ZADD', ends, expires, name)
  return expires
end

local function remember(record, ttl)
  prune(note(record) - ttl, 16)
  settle()
  return 1
end

local function forget(record)
  local name = name_of(record)
  redis.call('ZREM', names, name)
  redis.call('ZREM', ends, name)
  settle()
  return 1
end

-- name: insert
-- ARGV: value, TTL in milliseconds
if not redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2], 'NX') then
  return 0
end
return remember(KEYS[3], ARGV[2])

-- name: put
-- ARGV: value, TTL in milliseconds
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
return remember(KEYS[3], ARGV[2])

-- name: swap
-- ARGV: value, TTL in milliseconds, expected value
if redis.call('GET', KEYS[3]) ~= ARGV[3] then
  return 0
end
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
return remember(KEYS[3], ARGV[2])

-- name: touch
-- ARGV: TTL in milliseconds
if redis.call('PEXPIRE', KEYS[3], ARGV[1]) == 0 then
  return 0
end
return remember(KEYS[3], ARGV[1])

-- name: delete
if redis.call('DEL', KEYS[3]) == 0 then
  return 0
end
return forget(KEYS[3])

-- name: delete_if
-- ARGV: expected value
if redis.call('GET', KEYS[3]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[3])
return forget(KEYS[3])

-- name: insert_many
-- ARGV: value and TTL in milliseconds of each record in turn. Answers 1 or 0 for each.
local answers, now = {}, nil
for number = 3, #KEYS do
  local record, ttl = KEYS[number], ARGV[2 * number - 4]
  if redis.call('SET', record, ARGV[2 * number - 5], 'PX', ttl, 'NX') then
    now = note(record) - ttl
    answers[number - 2] = 1
  else
    answers[number - 2] = 0
  end
end
if now then
  prune(now, 16 + #KEYS)
  settle()
end
return answers

-- name: find
-- Answers value and expiry.
local value = redis.call('GET', KEYS[3])
return value and {value, redis.call('PEXPIRETIME', KEYS[3])}

-- name: scan
-- ARGV: lower and upper bound as ZRANGE BYLEX takes them, number of records, the records' common prefix.
-- Answers the name to go on after ('' at the end), then name, value and expiry of each live record. Stops early after
-- a megabyte. A replica refuses to prune, and can be read all the same.
local time = redis.call('TIME')
prune(time[1] * 1000 + math.floor(time[2] / 1000), 250)
local limit = tonumber(ARGV[3])
local found, size = {''}, 0
local listed = redis.call('ZRANGE', names, ARGV[1], ARGV[2], 'BYLEX', 'LIMIT', 0, limit)
for number, name in ipairs(listed) do
  local record = ARGV[4] .. name
  local value = redis.call('GET', record)
  if value then
    found[#found + 1] = name
    found[#found + 1] = value
    found[#found + 1] = redis.call('PEXPIRETIME', record)
    size = size + #value
  end
  if size > 1048576 or number == limit then
    found[1] = name
    break
  end
end
return found

-- name: check
-- Tries every command that a script uses on a key that is not there (KEYS[3]), where none of them does anything: what a
-- user may not do must show when a store is opened, not in the middle of a write. Answers the first that is impossible
-- with the reason, or nothing. That a server takes no writes now is no reason.
for _, words in ipairs({
  {'GET', KEYS[3]}, {'SET', KEYS[3], '', 'XX', 'PX', 1}, {'DEL', KEYS[3]}, {'TIME'},
  {'PEXPIRE', KEYS[3], 1}, {'PEXPIREAT', KEYS[3], 1}, {'PEXPIRETIME', KEYS[3]},
  {'ZADD', KEYS[3], 'XX', 0, ''}, {'ZREM', KEYS[3], ''}, {'ZRANGE', KEYS[3], 0, 0}, {'ZREMRANGEBYRANK', KEYS[3], 0, 0},
}) do
  local answer = redis.pcall(unpack(words))
  if type(answer) == 'table' and answer.err and string.find(answer.err, '^ERR') then
    return {words[1], answer.err}
  end
end
return {}
